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

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import Tracking
from raylfl.core.algorithm import State


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
