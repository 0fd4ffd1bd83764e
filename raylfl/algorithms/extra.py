"""EXTRA: DSGD plus the sum of past differences between neighbours, the first exact decentralised gradient method.

Shi, Ling, Wu & Yin, SIAM J. Optim. 2015, eqs. (2.13)-(2.14) with W~ = (I + W)/2. Symbols as in `raylfl.algorithms`.

State    node x_i and s_i [d], the sum of past differences, s = 0 at first.
Sent     d floats along each edge (x).
Assumes  mixing matrix W symmetric and doubly stochastic; one local step per round.

    paper    x_{k+2} = (I + W) x_{k+1} - W~ x_k - eta (grad f(x_{k+1}) - grad f(x_k)),  x_1 = W x_0 - eta grad f(x_0)
    here     x_{k+1} = W x_k - eta grad f(x_k) + s_k,  s_{k+1} = s_k + (W - W~) x_k
             This is the paper's recursion summed over k. In this form W may be another matrix in every round.
    always   sum_i s_i = 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import State


@ALGORITHMS.register("extra", paper="Shi et al. 2015")
@dataclass
class Extra(GraphAlgorithm):
    """EXTRA: DSGD plus the sum of past differences between neighbours, with exact convergence."""

    own_step: ClassVar[bool] = True
    one_step: ClassVar[bool] = True

    def init_nodes(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1), "s": x.new_zeros(count, x.numel())}

    def messages(self, rows: State, before: State) -> State:
        return {"x": before["x"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        s = (mixed["x"] - before["x"]).div_(2).add_(before["s"])
        return {"x": (rows["x"] - before["x"]).add_(mixed["x"]).add_(before["s"]), "s": s}
