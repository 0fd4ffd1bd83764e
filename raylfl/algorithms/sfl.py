"""SFL: sequential federated learning, the model passed from client to client.

Li & Lyu, NeurIPS 2023, Alg. 1 (cyclic weight transfer); its parallel twin PFL (Alg. 2) is `fedavg`.

State    server x [d]; clients none.
Sent     d floats down to the first client, d from client to client (C - 1 times), d up from the last.
Assumes  nothing; a client whose hand-over fails is skipped: the next starts from the last model that arrived.

    ring     x_{pi_1} starts from x; x_{pi_m} from the result of pi_{m-1}, pi a fresh random order of the cohort;
             K_i times x_i <- x_i - eta grad f_i(x_i)
    server   x <- x - gamma (x - last)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.population import Round


@ALGORITHMS.register("sfl", paper="Li & Lyu 2023 [2]")
@dataclass
class SFL(Algorithm):
    """SFL: the model passes through the cohort in a fresh random order, K local steps each."""

    gamma: float = 1.0  # server lr; 1: the last client's result, as in Alg. 1

    route: ClassVar[Literal["star", "ring"]] = "ring"
    uploads_update: ClassVar[bool] = False

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x}, {}

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        last = uploads["x"][-1]  # of a ring only the last upload reaches the server
        if self.gamma == 1.0:
            return {"x": last}, {}  # the same bits as the client's result
        return {"x": server["x"] - self.gamma * (server["x"] - last)}, {}
