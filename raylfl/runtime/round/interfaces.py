"""Interfaces that the round loop uses: of the planner, the cost model and the measurements."""

from __future__ import annotations

from typing import Any, Protocol

from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.costs import RoundCosts
from raylfl.core.deferred import Deferred
from raylfl.core.population import Round
from raylfl.heterogeneity.trace import Row
from raylfl.runtime.round.state import FederationState, RoundResult

Metrics = dict[str, Any]


class PlannerLike(Protocol):
    """The interface of the planner, which plans the rounds; implemented by `Planner`."""

    def plan(self, r: int, server: ServerState) -> Round:
        """Plans round r: the sampled clients, their local steps, and the uploads that will be received.

        server: the server state before the round.
        """

    def sampled(self, result: RoundResult, server: ServerState) -> RoundResult:
        """The round result after the server has sampled clients by the norms of their updates.

        It is unchanged for methods that do not sample in this way. server: the server state before the round.
        """

    def prefetch(self, r: int) -> None:
        """Plans round r ahead of time, if the plan does not depend on earlier rounds."""

    def row(self, r: Round) -> Row:
        """The row of participation.jsonl for round r."""

    def graph_line(self, r: Round) -> str | None:
        """The line of topology.jsonl for round r; None for a method with a server."""


class CostModelLike(Protocol):
    """The interface of the cost model, which counts the costs of rounds; implemented by `CostModel`."""

    def of_round(self, result: RoundResult, broadcast: State, second: State | None) -> RoundCosts:
        """The costs, messages and simulated duration of a round.

        second: the second broadcast, sent after the server step to the clients whose uploads were received; None if
        there is none.
        """


class MeasurementsLike(Protocol):
    """The interface of the measurements of rounds; implemented by `Measurements`."""

    def of_round(
        self, result: RoundResult, state: FederationState, before: ServerState, info: Info, last: bool
    ) -> Deferred[Metrics]:
        """The metrics of a round, as a row of metrics.jsonl.

        state: the state after the round; before: the server state before it; info: the algorithm's metrics; last:
        whether it is the last round of the run.
        """
