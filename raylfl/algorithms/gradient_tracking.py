"""Gradient tracking: every node steps along its estimate of the mean gradient of all nodes.

Nedic, Olshevsky & Shi, SIAM J. Optim. 2017 (`diging`); Pu, Shi, Xu & Nedic, IEEE TAC 2021, with R = C = W (`atc`).
Aug-DGM (Xu, Zhu, Soh & Xie, CDC 2015) also mixes the change of the gradient, y <- W (y + g - g_prev), which needs a
second exchange in each round. Symbols as in `raylfl.algorithms`.

State    node x_i, tracked gradient y_i, last gradient g_prev_i [d], y = g_prev = 0 at first.
Sent     2d floats along each edge (x, y).
Assumes  mixing matrix W doubly stochastic, which may change; one local step per round.

    local    g = grad f(x);  y <- y + g - g_prev;  g_prev <- g
    diging   x <- W x - eta y;  y <- W y
    atc      x <- W (x - eta y);  y <- W y
    always   sum_i y_i = sum_i g_prev_i (tracking)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import Tracking
from raylfl.core.algorithm import State
from raylfl.core.mixing import Family
from raylfl.core.mixing_rows import MixingRows


@ALGORITHMS.register("gradient_tracking", paper="Nedic et al. 2017")
@dataclass
class GradientTracking(Tracking):
    """Gradient tracking (DIGing, adapt-then-combine): steps along a tracked mean gradient, with exact convergence."""

    order: Literal["diging", "atc"] = "diging"  # diging: x is mixed before the step is added; atc: after it

    one_step: ClassVar[bool] = True

    def messages(self, rows: State, before: State) -> State:
        return {"x": rows["x"] if self.order == "atc" else before["x"], "y": rows["y"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        x = mixed["x"] if self.order == "atc" else mixed["x"] + (rows["x"] - before["x"])
        return {"x": x, "y": mixed["y"], "g_prev": rows["g_prev"]}


@ALGORITHMS.register("push_pull", paper="Pu et al. 2021")
@dataclass
class PushPull(Tracking):
    """Push-pull (AB): gradient tracking over directed graphs without push-sum, with exact convergence.

    Pu, Shi, Xu & Nedic, IEEE TAC 2021, Alg. 1; Xin & Khan, IEEE L-CSS 2018; matrices that change: Nedic, Nguyen &
    Nguyen, 2023. A row-stochastic matrix pulls the models, a column-stochastic one pushes the tracked gradients. FOCUS
    is the same method on a star whose matrices change with the clients that take part (`focus`).

    State    node x_i, tracked gradient y_i, last gradient g_prev_i [d], y = g_prev = 0 at first.
    Sent     2d floats along each edge (x, y).
    Assumes  mixing matrices R row-stochastic, C column-stochastic, which may change; one node, the root, reaches all
             other nodes along the edges of R, and all other nodes reach the root along the edges of C.

        local    K_i times:  g = grad f_i(x_i);  y_i <- y_i + g - g_prev_i;  g_prev_i <- g;  x_i <- x_i - eta y_i
        mixing   x <- R x;  y <- C y
        always   sum_i y_i = sum_i g_prev_i (tracking)
    """

    family: ClassVar[Family] = "pair"

    def messages(self, rows: State, before: State) -> State:
        return {"x": rows["x"], "y": rows["y"]}

    def matrix(self, message: str, parts: Sequence[MixingRows]) -> MixingRows:
        pull, push = parts
        return pull if message == "x" else push

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {**mixed, "g_prev": rows["g_prev"]}
