"""Scaffnew (ProxSkip): local steps with control variates, accelerated in the number of communications.

Mishchenko et al., ICML 2022, Alg. 2. Symbols as in `raylfl.algorithms`.

State    server x [d]; client h_i [d], its control variate, 0 at first.
Sent     d floats down (x), d floats up (U_i). h_i is updated with the x of the next broadcast, at no further traffic.
Assumes  full participation over perfect links, and the same K at every client.

    client   x_i <- x_i - eta (grad f_i(x_i) - h_i), K times from x
    server   x <- (1/|R|) sum_R x_i
    then     h_i <- h_i + (p/eta) (x - x_i)
    always   sum_i h_i = 0 under full participation

The paper tosses one coin of probability p for all clients after every step, and communicates on heads. A round
spans the steps between two heads: with `p` given its K is drawn from the geometric distribution,
P(K = k) = p (1-p)^(k-1), and `local.steps` is ignored. Without p, every K-th toss is heads, and p = 1/K.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.components.options import Gt, Le
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.population import Round
from raylfl.core.reduce import column, tree_sum


@ALGORITHMS.register("scaffnew", paper="Mishchenko et al. 2022")
@dataclass
class Scaffnew(Algorithm):
    """Scaffnew (ProxSkip): local steps with control variates; communication every K steps, or with probability p."""

    # communication probability of a step; null departs from the paper: every K = local.steps steps, p = 1/K
    p: Annotated[float, Gt(0), Le(1)] | None = None

    own_step: ClassVar[bool] = True
    assumes_full: ClassVar[bool] = True
    assumes_equal_steps: ClassVar[bool] = True

    def draw_local_steps(self, rng: np.random.Generator) -> int | None:
        return None if self.p is None else int(rng.geometric(self.p))

    def init_clients(self, x: Tensor, count: int) -> State:
        return {"h": x.new_zeros(count, x.numel())}

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        return {"h": client_state["h"]}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        return g - carry["h"], carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"update": carry["x_start"] - x}, client_state

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        return {"x": server["x"] - _mean(uploads["update"])}, {}

    def update_clients(self, server: ServerState, uploads: State, client_state: State, r: Round) -> State | None:
        # xbar - x_{i,K} = U_i - mean U: a difference of two small vectors rather than of two models
        p = 1.0 / np.maximum(r.steps, 1) if self.p is None else np.full(len(r.cohort), self.p)
        moved = column(np.where(r.steps > 0, p / r.lr, 0.0), client_state["h"])
        return {"h": client_state["h"] + moved * (uploads["update"] - _mean(uploads["update"]))}


def _mean(updates: Tensor) -> Tensor:
    return tree_sum(updates) / len(updates)
