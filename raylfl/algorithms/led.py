"""LED: local exact diffusion, exact diffusion with local steps.

Alghunaim, IEEE TAC 2024, Alg. 1, with W~ = (I + W)/2 (`lazy`): the paper's analysis needs a positive semidefinite W~.
Symbols as in `raylfl.algorithms`.

State    node x_i and its dual variable e_i [d] (the paper's y), e = 0 at first.
Sent     d floats along each edge (phi).
Assumes  mixing matrix W symmetric and doubly stochastic; the same K at every client in every round.

    local    phi_i = x_i;  phi_i <- phi_i - eta grad f_i(phi_i) - beta e_i, K times;  beta = 1/K
    mixing   x <- W~ phi;  e <- e + phi - W~ phi
    always   sum_i e_i = 0. LED with K = 1 is `nids`; LED on the complete graph without `lazy` is `scaffnew`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm, weight_gradients
from raylfl.components.options import Doc, Gt, Le
from raylfl.core.algorithm import State, Work


@dataclass
class LocalDual(GraphAlgorithm):
    """The common part of `led` and `proxskip`: each local step also subtracts a share of the node's dual variable."""

    lazy: bool = True  # mix by (I + W)/2; false: by W

    own_step: ClassVar[bool] = True
    assumes_equal_steps: ClassVar[bool] = True
    zeros: ClassVar[tuple[str, ...]] = ("e",)

    @property
    def share(self) -> float | None:
        """The share of the dual variable e that a local step subtracts; None: 1/K for K local steps."""
        return None

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        carry, e = super().start(broadcast, client_state, work), client_state["e"]
        return {**carry, "pull": e * work.per_step(e) if self.share is None else e * (self.share / work.lr)}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        return weight_gradients(g, carry).add_(carry["pull"]), carry

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {"x": mixed["x"], "e": (before["e"] + rows["x"]).sub_(mixed["x"])}


@ALGORITHMS.register("led", paper="Alghunaim 2024")
@dataclass
class LED(LocalDual):
    """LED: exact diffusion with K local steps per round; exact convergence if all nodes have the same K."""

    beta: Annotated[
        float | None, Gt(0), Le(1), Doc("the share of the dual variable e that a local step subtracts; null: 1/K")
    ] = None

    @property
    def share(self) -> float | None:
        return self.beta


@ALGORITHMS.register("proxskip", paper="Mishchenko et al. 2022")
@dataclass
class ProxSkip(LocalDual):
    """ProxSkip on a graph: after each local step nodes exchange with probability p; exact convergence.

    Mishchenko et al., ICML 2022, Sec. 5; Guo, Alghunaim, Yuan, Condat & Cao, 2023. `scaffnew` is the form with a
    server.

    State    node x_i and its dual variable e_i [d], e = 0 at first.
    Sent     d floats along each edge (phi).
    Assumes  mixing matrix W symmetric and doubly stochastic; the same K at every client, drawn by one coin for all
             nodes.

        local    phi_i = x_i;  phi_i <- phi_i - eta grad f_i(phi_i) - p e_i, K times;  K ~ Geometric(p)
        mixing   x <- W~ phi;  e <- e + phi - W~ phi:  as in `led`; Scaffnew's h_i is -(p/eta) e_i
        always   sum_i e_i = 0

    A round spans the steps between two heads of the coin, P(K = k) = p (1-p)^(k-1); `local.steps` does not apply.
    """

    p: Annotated[float, Gt(0), Le(1), Doc("the probability of an exchange after a local step")] = 0.2

    @property
    def share(self) -> float | None:
        return self.p

    def draw_local_steps(self, rng: np.random.Generator) -> int | None:
        return int(rng.geometric(self.p))
