"""Local training: every client trains alone. A reference, not a federated method.

Symbols as in `raylfl.algorithms`.

State    server x [d], for reports only; client x_i [d], the initial model at first.
Sent     nothing down, d floats up (U_i) for the mean model x, which is only reported.
Assumes  nothing.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from its own x_i;  U_i = old x_i - new x_i
    server   x <- x - sum_{i in R} w_i U_i, never sent back
    always   x = sum_i w_i x_i
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Info, ServerState, State, Work
from raylfl.core.population import Round
from raylfl.core.summing import Coefficients, Summing


@ALGORITHMS.register("local_only")
@dataclass
class LocalOnly(Summing):
    """Local training: every client trains alone; the weighted mean of the clients' models is reported."""

    def init_clients(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1)}

    def broadcast(self, server: ServerState) -> State:
        return {}

    def start_point(self, broadcast: State, client_state: State) -> Tensor:
        return client_state["x"]

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"update": carry["x_start"] - x}, {"x": x}

    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        return {"update": r.weights}

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        return {"x": server["x"] - sums["update"]}, {}
