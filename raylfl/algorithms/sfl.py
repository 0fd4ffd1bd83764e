"""SFL: sequential federated learning, in which the model passes from client to client.

Li & Lyu, NeurIPS 2023, Alg. 1 (cyclic weight transfer); its parallel twin PFL (Alg. 2) is `fedavg`.
Symbols as in `raylfl.algorithms`.

State    server x [d]; clients none.
Sent     d floats down to the first client, d from client to client (C - 1 times for C clients), d up from the last.
Assumes  nothing; if a model is lost between two clients, the next client starts from the last model received.

    ring     pi: a random order of the cohort, drawn every round; pi_1 starts from x, pi_m from the result of pi_{m-1};
             K_i times x_i <- x_i - eta grad f_i(x_i)
    server   x <- x - gamma (x - x_last), with x_last the result of the last client
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.pattern import ExchangePattern, Ring
from raylfl.core.population import Round


@ALGORITHMS.register("sfl", paper="Li & Lyu 2023 [2]")
@dataclass
class SFL(Algorithm):
    """SFL: the model passes through the sampled clients in a random order; each client takes its local steps."""

    gamma: float = 1.0  # server lr; 1: the last client's result, as in Alg. 1

    pattern: ClassVar[ExchangePattern] = Ring()
    uploads_update: ClassVar[bool] = False

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x}, {}

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        last = uploads["x"][-1]  # only the last client of a ring uploads to the server
        if self.gamma == 1.0:
            return {"x": last}, {}  # bit-identical to the client's result
        return {"x": server["x"] - self.gamma * (server["x"] - last)}, {}
