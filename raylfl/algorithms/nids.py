"""NIDS and D2: a dual variable per node cancels the heterogeneity of gradients before they are mixed.

Li, Shi & Yan, IEEE TSP 2019, eq. (3) with equal step sizes (`lazy`: W~ = (I + W)/2); D2, for stochastic gradients: Tang
et al., ICML 2018 (W itself, whose smallest eigenvalue must exceed -1/3). Symbols as in `raylfl.algorithms`.

State    node x_i and e_i [d], eta times its dual variable, e = 0 at first.
Sent     d floats along each edge (v).
Assumes  mixing matrix W symmetric and doubly stochastic; one local step per round.

    paper    x_{k+2} = W~ (2 x_{k+1} - x_k - eta (grad f(x_{k+1}) - grad f(x_k)))
    here     v = x - eta grad f(x) - e;  x <- W~ v;  e <- e + v - W~ v:  the paper's recursion for a constant W
    start    here x_1 = W~ (x_0 - eta grad f(x_0)), as in D2 and exact diffusion; in NIDS x_1 = x_0 - eta grad f(x_0)
    always   sum_i e_i = 0. With `lazy` the sequence is that of `exact_diffusion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import State
from raylfl.core.mixing_rows import MixingRows


@ALGORITHMS.register("nids", paper="Li et al. 2019")
@dataclass
class NIDS(GraphAlgorithm):
    """NIDS with the start of D2: steps corrected by a dual variable of each node, exact; `lazy: false` is D2."""

    lazy: bool = True  # mix by (I + W)/2; false: by W, D2

    own_step: ClassVar[bool] = True
    one_step: ClassVar[bool] = True

    def init_nodes(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1), "e": x.new_zeros(count, x.numel())}

    def messages(self, rows: State, before: State) -> State:
        return {"v": rows["x"] - before["e"]}

    def matrix(self, message: str, parts: Sequence[MixingRows]) -> MixingRows:
        return parts[0].lazy() if self.lazy else parts[0]

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {"x": mixed["v"], "e": before["e"] + (rows["x"] - before["e"]) - mixed["v"]}
