"""FedProx: a proximal term that pulls every local objective towards the server's model.

Li et al., MLSys 2020, Alg. 2, with local SGD as the inexact solver of eq. (2). Symbols as in `raylfl.algorithms`.

State    server x [d]; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  nothing; like FedAvg it minimises a surrogate sum_i Omega_i f_i (weights Omega: see `fedavg`), not F.

    client   x_i <- x_i - eta (grad f_i(x_i) + mu (x_i - x)), K_i times from x;  U_i = x - x_i
    server   x <- x - gamma sum_{i in R} c_i U_i, c_i from `aggregate`
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import Aggregating, Rule
from raylfl.components.options import Doc, Ge
from raylfl.core.algorithm import State


@ALGORITHMS.register("fedprox", paper="Li et al. 2020")
@dataclass
class FedProx(Aggregating):
    """FedProx: local SGD on f_i(x_i) + mu/2 |x_i - x|^2, with f_i the client's objective and x the server's model."""

    # the paper uses 0.001 to 1; 0 is FedAvg
    mu: Annotated[float, Ge(0), Doc("the stiffness of the proximal term")] = 0.01
    gamma: float = 1.0  # server lr
    aggregate: Rule = "mean"

    @property
    def proximal(self) -> float:
        return self.mu

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        return torch.add(g, x - carry["x_start"], alpha=self.mu), carry
