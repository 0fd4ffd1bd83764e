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

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import State


@ALGORITHMS.register("nids", paper="Li et al. 2019")
@dataclass
class NIDS(GraphAlgorithm):
    """NIDS with the start of D2: steps corrected by a dual variable of each node, exact; `lazy: false` is D2."""

    lazy: bool = True  # mix by (I + W)/2; false: by W, D2

    own_step: ClassVar[bool] = True
    one_step: ClassVar[bool] = True
    zeros: ClassVar[tuple[str, ...]] = ("e",)

    def messages(self, rows: State, before: State) -> State:
        return {"v": rows["x"] - before["e"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {"x": mixed["v"], "e": before["e"] + (rows["x"] - before["e"]) - mixed["v"]}


@ALGORITHMS.register("exact_diffusion", paper="Yuan et al. 2019")
@dataclass
class ExactDiffusion(GraphAlgorithm):
    """Exact diffusion: adapt-then-combine DSGD with a correction that cancels its error.

    Yuan, Ying, Zhao & Sayed, IEEE TSP 2019, Alg. 1, with W~ = (I + W)/2.

    State    node x_i and psi_i [d], its last adapted point, both the initial model at first.
    Sent     d floats along each edge (phi).
    Assumes  mixing matrix W symmetric and doubly stochastic; one local step per round.

        adapt    psi' = x - eta grad f(x)
        correct  phi = psi' + x - psi;  psi <- psi'
        combine  x <- W~ phi
        always   sum_i (x_i - psi_i) = 0, also if only some nodes work in a round
    """

    lazy = True
    own_step: ClassVar[bool] = True
    one_step: ClassVar[bool] = True

    def init_nodes(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1), "psi": x.repeat(count, 1)}

    def messages(self, rows: State, before: State) -> State:
        return {"x": rows["x"] + before["x"] - before["psi"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {**mixed, "psi": rows["x"]}


@ALGORITHMS.register("extra", paper="Shi et al. 2015")
@dataclass
class Extra(GraphAlgorithm):
    """EXTRA: DSGD plus the sum of past differences between neighbours, with exact convergence.

    Shi, Ling, Wu & Yin, SIAM J. Optim. 2015, eqs. (2.13)-(2.14) with W~ = (I + W)/2.

    State    node x_i and s_i [d], the sum of past differences, s = 0 at first.
    Sent     d floats along each edge (x).
    Assumes  mixing matrix W symmetric and doubly stochastic; one local step per round.

        paper    x_{k+2} = (I + W) x_{k+1} - W~ x_k - eta (grad f(x_{k+1}) - grad f(x_k)),
                 x_1 = W x_0 - eta grad f(x_0)
        here     x_{k+1} = W x_k - eta grad f(x_k) + s_k,  s_{k+1} = s_k + (W - W~) x_k
                 This is the paper's recursion summed over k. In this form W may be another matrix in every round.
        always   sum_i s_i = 0
    """

    own_step: ClassVar[bool] = True
    one_step: ClassVar[bool] = True
    zeros: ClassVar[tuple[str, ...]] = ("s",)

    def messages(self, rows: State, before: State) -> State:
        return {"x": before["x"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        s = (mixed["x"] - before["x"]).div_(2).add_(before["s"])
        return {"x": (rows["x"] - before["x"]).add_(mixed["x"]).add_(before["s"]), "s": s}
