"""FedAvgM: FedAvg with momentum at the server, heavy-ball or Nesterov's.

Hsu, Qi & Brown 2019, sec. 3. Symbols as in `raylfl.algorithms`.

State    server x, v [d], v = 0 at first; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  nothing; like FedAvg it minimises a surrogate sum_i Omega_i f_i (weights Omega: see `fedavg`), not F.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   D = sum_{i in R} c_i U_i, c_i from `aggregate`;  v <- beta v + D
             x <- x - gamma v;  with nesterov x <- x - gamma (D + beta v)

The momentum is not damped: for a constant D the step grows to gamma D / (1 - beta).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import Aggregating, Rule
from raylfl.components.options import Doc, Ge, Lt
from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.elementwise import elementwise
from raylfl.core.population import Population, Round


@ALGORITHMS.register("fedavgm", paper="Hsu et al. 2019")
@dataclass
class FedAvgM(Aggregating):
    """FedAvgM: FedAvg with momentum at the server."""

    gamma: float = 1.0  # server lr
    beta: Annotated[float, Ge(0), Lt(1), Doc("the server momentum")] = 0.9
    nesterov: Annotated[bool, Doc("true: Nesterov momentum at the server, as in DiLoCo; not in the paper")] = False
    aggregate: Rule = "mean"

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "v": torch.zeros_like(x)}

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        def step(x: Tensor, v: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
            v = self.beta * v + mean
            return x - self.gamma * (mean + self.beta * v if self.nesterov else v), v

        x, v = elementwise(step, server["x"], server["v"], sums["update"])
        return {"x": x, "v": v}, {"v_norm": float(v.norm())}
