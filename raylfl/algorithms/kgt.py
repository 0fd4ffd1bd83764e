"""K-GT: gradient tracking with local steps, by a correction that is constant within a round.

Liu, Lin, Koloskova & Stich, TMLR 2024, Alg. 1, with corrections that start at 0. Symbols as in `raylfl.algorithms`.

State    node x_i and its correction c_i [d], c = 0 at first.
Sent     2d floats along each edge (z_i, and x_i after a step of length gamma towards the result of the local steps).
Assumes  mixing matrix W doubly stochastic, which may change.

    local    x_i <- x_i - eta (grad f_i(x_i) + c_i), K_i times;  z_i = (x_i,0 - x_i,K) / (K_i eta)
    mixing   c <- c - z + W z;  x <- W (x_0 - gamma (x_0 - x_K))
    always   sum_i c_i = 0
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm, weight_gradients
from raylfl.components.options import Doc, Gt
from raylfl.core.algorithm import State, Work


@ALGORITHMS.register("kgt", paper="Liu et al. 2024")
@dataclass
class KGT(GraphAlgorithm):
    """K-GT: gradient tracking with K local steps per round and exact convergence."""

    gamma: Annotated[float, Gt(0), Doc("the length of the exchanged step, the paper's eta_s")] = 1.0

    own_step: ClassVar[bool] = True
    zeros: ClassVar[tuple[str, ...]] = ("c",)

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        return weight_gradients(g, carry).add_(carry["c"]), carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        moved = carry["x_start"] - x
        return {"x": x, "z": moved * work.per_step(x)}, {}

    def messages(self, rows: State, before: State) -> State:
        stepped = rows["x"] if self.gamma == 1.0 else before["x"] - self.gamma * (before["x"] - rows["x"])
        return {"x": stepped, "z": rows["z"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {"x": mixed["x"], "c": (before["c"] - rows["z"]).add_(mixed["z"])}
