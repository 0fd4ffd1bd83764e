"""Exact diffusion: adapt, correct, combine.

Yuan, Ying, Zhao & Sayed, IEEE TSP 2019, Alg. 1, with W~ = (I + W)/2. Symbols as in `raylfl.algorithms`.

State    node x_i and psi_i [d], its last adapted point, both the initial model at first.
Sent     d floats along each edge (phi).
Assumes  mixing matrix W symmetric and doubly stochastic; one local step per round.

    adapt    psi' = x - eta grad f(x)
    correct  phi = psi' + x - psi;  psi <- psi'
    combine  x <- W~ phi
    always   sum_i (x_i - psi_i) = 0, also if only some nodes work in a round
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


@ALGORITHMS.register("exact_diffusion", paper="Yuan et al. 2019")
@dataclass
class ExactDiffusion(GraphAlgorithm):
    """Exact diffusion: adapt-then-combine DSGD with a correction that cancels its error."""

    own_step: ClassVar[bool] = True
    one_step: ClassVar[bool] = True

    def init_nodes(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1), "psi": x.repeat(count, 1)}

    def messages(self, rows: State, before: State) -> State:
        return {"x": rows["x"] + before["x"] - before["psi"]}

    def matrix(self, message: str, parts: Sequence[MixingRows]) -> MixingRows:
        return parts[0].lazy()

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {**mixed, "psi": rows["x"]}
