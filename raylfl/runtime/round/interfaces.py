"""What the round asks of its parts: who takes part, what it cost, what is measured."""

from __future__ import annotations

from typing import Any, Protocol

from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.costs import Costs
from raylfl.core.deferred import Deferred
from raylfl.core.population import Round
from raylfl.heterogeneity.trace import Row
from raylfl.runtime.round.state import FederationState, RoundResult

Metrics = dict[str, Any]


class Plans(Protocol):
    """Draws the rounds (`Planner`)."""

    def plan(self, r: int, server: ServerState) -> Round:
        """Round r as it is sent out."""

    def sampled(self, result: RoundResult, server: ServerState) -> RoundResult:
        """What reaches the server, of a method that samples clients by what they computed; else the result itself."""

    def prefetch(self, r: int) -> None:
        """Draws round r ahead of time, where that is possible."""

    def row(self, r: Round) -> Row:
        """The line of participation.jsonl."""


class Counts(Protocol):
    """Counts what rounds cost (`CostModel`)."""

    def of_round(self, result: RoundResult, broadcast: State, second: State | None) -> Costs:
        """Floats, steps and gradients."""

    def seconds(self, result: RoundResult, costs: Costs) -> tuple[float, float]:
        """Virtual seconds of the round, and of its computation alone."""


class Measures(Protocol):
    """Measures rounds (`Measurements`)."""

    def of_round(
        self, result: RoundResult, state: FederationState, before: ServerState, info: Info, last: bool
    ) -> Deferred[Metrics]:
        """The row of metrics.jsonl."""
