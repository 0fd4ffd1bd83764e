"""Gradient tracking: every node follows an estimate of the mean gradient of all nodes.

Nedic, Olshevsky & Shi, SIAM J. Optim. 2017 (`diging`); Xu, Zhu, Soh & Xie, CDC 2015 (`atc`: Aug-DGM).

State    node x_i, y_i, g_prev_i [d], y = g_prev = 0 at first.
Sent     2d floats along each edge (x, y).
Assumes  W doubly stochastic, which may change; one local step per round.

    local    g = grad f(x);  y <- y + g - g_prev;  g_prev <- g
    diging   x <- W x - eta y;  y <- W y
    atc      x <- W (x - eta y);  y <- W y
    always   sum_i y_i = sum_i g_prev_i (tracking)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import Tracking
from raylfl.core.algorithm import State
from raylfl.core.mixing import Mixing
from raylfl.core.population import Round


@ALGORITHMS.register("gradient_tracking", paper="Nedic et al. 2017")
@dataclass
class GradientTracking(Tracking):
    """Gradient tracking (DIGing, Aug-DGM): steps along a tracked mean gradient; exact."""

    order: Literal["diging", "atc"] = "diging"  # combine x beside the step, or after it

    one_step: ClassVar[bool] = True

    def mix(self, rows: State, before: State, mixings: Sequence[Mixing], r: Round) -> State:
        w = mixings[0]
        x = w(rows["x"]) if self.order == "atc" else w(before["x"]) + (rows["x"] - before["x"])
        return {"x": x, "y": w(rows["y"]), "g_prev": rows["g_prev"]}
