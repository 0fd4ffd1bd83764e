"""ProxSkip on a graph: local steps with a dual variable, each followed by an exchange with probability p.

Mishchenko et al., ICML 2022, Sec. 5; Guo, Alghunaim, Yuan, Condat & Cao, 2023. `scaffnew` is the form with a server.
Symbols as in `raylfl.algorithms`.

State    node x_i and its dual variable e_i [d], e = 0 at first.
Sent     d floats along each edge (phi).
Assumes  mixing matrix W symmetric and doubly stochastic; the same K at every client, drawn by one coin for all nodes.

    local    phi_i = x_i;  phi_i <- phi_i - eta grad f_i(phi_i) - p e_i, K times;  K ~ Geometric(p)
    mixing   x <- W~ phi;  e <- e + phi - W~ phi:  as in `led`; Scaffnew's h_i is -(p/eta) e_i
    always   sum_i e_i = 0

A round spans the steps between two heads of the coin, P(K = k) = p (1-p)^(k-1); `local.steps` does not apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.led import LocalDual
from raylfl.components.options import Doc, Gt, Le


@ALGORITHMS.register("proxskip", paper="Mishchenko et al. 2022")
@dataclass
class ProxSkip(LocalDual):
    """ProxSkip on a graph: after each local step nodes exchange with probability p; exact convergence."""

    p: Annotated[float, Gt(0), Le(1), Doc("the probability of an exchange after a local step")] = 0.2

    @property
    def share(self) -> float | None:
        return self.p

    def draw_local_steps(self, rng: np.random.Generator) -> int | None:
        return int(rng.geometric(self.p))
