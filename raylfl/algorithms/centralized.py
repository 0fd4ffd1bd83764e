"""Centralised training: SGD on the union of all clients' data. A reference, not a federated method.

Symbols as in `raylfl.algorithms`.

State    server x [d]; clients none.
Sent     nothing: the data are at the server.
Assumes  that data may be pooled; participation and links do not apply.

    server   x <- x - eta grad f(x), K times a round; f: mean loss over all samples, F with the weights n_i/n
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.pattern import Alone, ExchangePattern
from raylfl.core.population import Round
from raylfl.core.summing import Coefficients, Summing


@ALGORITHMS.register("centralized")
@dataclass
class Centralized(Algorithm):
    """Centralised training: K SGD steps per round on the mean loss over the samples of all clients."""

    pattern: ClassVar[ExchangePattern] = Alone()
    uploads_update: ClassVar[bool] = False

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x}, {}

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        return {"x": uploads["x"][0]}, {}  # the upload of the one client, which owns all data


@ALGORITHMS.register("local_only")
@dataclass
class LocalOnly(Summing):
    """Local training: every client trains alone; the weighted mean of the clients' models is reported.

    State    server x [d], for reports only; client x_i [d], the initial model at first.
    Sent     nothing down, d floats up (U_i) for the mean model x, which is only reported.
    Assumes  nothing.

        client   x_i <- x_i - eta grad f_i(x_i), K_i times from its own x_i;  U_i = old x_i - new x_i
        server   x <- x - sum_{i in R} w_i U_i, never sent back
        always   x = sum_i w_i x_i
    """

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
