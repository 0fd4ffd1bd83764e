"""Push-DIGing: gradient tracking over directed graphs, by push-sum.

Nedic, Olshevsky & Shi, SIAM J. Optim. 2017, Alg. 2. Symbols as in `raylfl.algorithms`.

State    node x_i (the paper's u_i), y_i, g_prev_i [d] and the node's mass, its push-sum weight w_i (the paper's v_i);
         the model of node i is z_i = x_i / w_i. At first w = 1 and y = g_prev = 0.
Sent     2d + 1 floats along each edge (x, y, w).
Assumes  mixing matrix C column-stochastic, which may change; one local step per round.

    local    g = grad f(z);  y <- y + g - g_prev;  g_prev <- g;  x <- x - eta y
    mixing   x <- C x;  w <- C w;  y <- C y
    always   sum_i y_i = sum_i g_prev_i (tracking); sum_i w_i = N (mass)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import tracking, tracking_rows
from raylfl.algorithms.sgp import SGP
from raylfl.core.algorithm import State, Work


@ALGORITHMS.register("push_diging", paper="Nedic et al. 2017")
@dataclass
class PushDIGing(SGP):
    """Push-DIGing: gradient tracking over directed graphs, by push-sum, with exact convergence."""

    one_step: ClassVar[bool] = True
    tracked: ClassVar[str | None] = "y"
    changed_in_steps: ClassVar[tuple[str, ...]] = ("y",)

    def init_nodes(self, x: Tensor, count: int) -> State:
        return {**super().init_nodes(x, count), **tracking_rows(x, count)}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        carry = tracking(g, carry)
        return carry["y"] / carry["w"], carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x * carry["w"], "y": carry["y"], "g_prev": carry["g_prev"]}, {}

    def messages(self, rows: State, before: State) -> State:
        return {**super().messages(rows, before), "y": rows["y"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {**mixed, "g_prev": rows["g_prev"]}
