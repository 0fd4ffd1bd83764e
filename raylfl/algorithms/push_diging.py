"""Push-DIGing: gradient tracking over directed graphs, by push-sum.

Nedic, Olshevsky & Shi, SIAM J. Optim. 2017, Alg. 2.

State    node x_i (the paper's u_i), y_i, g_prev_i [d] and its mass w_i (v_i), 1 at first; its model is z_i = x_i / w_i.
Sent     2d floats along each edge (x, y; the mass, one number more, is not counted).
Assumes  C column-stochastic, which may change; one local step per round.

    local    g = grad f(z);  y <- y + g - g_prev;  g_prev <- g;  x <- x - eta y
    mixing   x <- C x;  w <- C w;  y <- C y
    always   sum_i y_i = sum_i g_prev_i (tracking); sum_i w_i = N (mass)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import tracking, tracking_rows
from raylfl.algorithms.sgp import SGP
from raylfl.core.algorithm import State, Work
from raylfl.core.mixing import Mixing
from raylfl.core.population import Round


@ALGORITHMS.register("push_diging", paper="Nedic et al. 2017")
@dataclass
class PushDIGing(SGP):
    """Push-DIGing: gradient tracking over directed graphs, with push-sum's masses; exact."""

    one_step: ClassVar[bool] = True
    tracked: ClassVar[str | None] = "y"
    server_known: ClassVar[tuple[str, ...]] = ("g_prev",)  # kept by its node, not mixed

    def init_nodes(self, x: Tensor, count: int) -> State:
        return {**super().init_nodes(x, count), **tracking_rows(x, count)}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        carry = tracking(g, carry)
        return carry["y"] / carry["w"], carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x * carry["w"], "y": carry["y"], "g_prev": carry["g_prev"]}, {}

    def mix(self, rows: State, before: State, mixings: Sequence[Mixing], r: Round) -> State:
        moved = super().mix(rows, before, mixings, r)
        return {**moved, "y": mixings[0](rows["y"]), "g_prev": rows["g_prev"]}
