"""Interfaces of the parts that the round loop uses: planner, cost model and measurements."""

from __future__ import annotations

from typing import Any, Protocol

from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.costs import Costs, Sent
from raylfl.core.deferred import Deferred
from raylfl.core.population import Round
from raylfl.heterogeneity.trace import Row
from raylfl.runtime.round.state import FederationState, RoundResult

Metrics = dict[str, Any]


class Plans(Protocol):
    """The planner, which draws the rounds (`Planner`)."""

    def plan(self, r: int, server: ServerState) -> Round:
        """Draws round r, before its local work."""

    def sampled(self, result: RoundResult, server: ServerState) -> RoundResult:
        """The round result after sampling by update norms; unchanged for methods that do not sample in this way."""

    def prefetch(self, r: int) -> None:
        """Draws round r ahead of time, if possible."""

    def row(self, r: Round) -> Row:
        """The row of participation.jsonl for round r."""

    def graph_line(self, r: Round) -> str | None:
        """The line of topology.jsonl for round r; None for a method with a server."""


class Counts(Protocol):
    """The cost model, which counts the costs of rounds (`CostModel`)."""

    def of_round(self, result: RoundResult, broadcast: State, second: State | None) -> Sent:
        """The floats, local steps and gradients of a round; second: the second broadcast, or None."""

    def seconds(self, result: RoundResult, costs: Costs) -> tuple[float, float]:
        """(virtual seconds of the round, virtual seconds of its computation alone)."""


class Measures(Protocol):
    """The measurements of rounds (`Measurements`)."""

    def of_round(
        self, result: RoundResult, state: FederationState, before: ServerState, info: Info, last: bool
    ) -> Deferred[Metrics]:
        """The row of metrics.jsonl; arguments as in `Measurements.of_round`."""
