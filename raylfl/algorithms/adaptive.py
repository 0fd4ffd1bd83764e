"""FedAdagrad, FedAdam, FedYogi: an adaptive optimiser at the server, applied to the mean update.

Reddi et al., ICLR 2021, Alg. 2. Symbols as in `raylfl.algorithms`.

State    server x, m, v [d], m = 0 and v = tau^2 at first; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  nothing; like FedAvg it minimises a surrogate sum_i Omega_i f_i (weights Omega: see `fedavg`), not F.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   D = sum_{i in R} c_i U_i, c_i from `aggregate`;  m <- b1 m + (1 - b1) D
             adagrad  v <- v + D^2
             adam     v <- b2 v + (1 - b2) D^2
             yogi     v <- v - (1 - b2) D^2 sign(v - D^2)
             x <- x - gamma m / (sqrt(v) + tau)

There is no bias correction. With adam and yogi a coordinate moves by roughly gamma in a round; with adagrad, whose v
only grows, it moves less and less.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import Aggregating, Rule
from raylfl.components.options import Doc, Ge, Gt, Lt
from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.chunked_matrix import elementwise
from raylfl.core.population import Population, Round


@dataclass
class Adaptive(Aggregating):
    """The common part of FedAdagrad, FedAdam and FedYogi; subclasses define `second_moment`."""

    gamma: float = 0.01  # server lr; the paper tunes it within 0.001 to 1
    b1: Annotated[float, Ge(0), Lt(1), Doc("the decay of m")] = 0.9
    tau: Annotated[float, Gt(0), Doc("the degree of adaptivity: it keeps the denominator away from 0")] = 1e-4
    aggregate: Rule = "mean"

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The new second moment v [d] from the old one and `square`, the squared aggregate D^2 [d] of the updates."""

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "m": torch.zeros_like(x), "v": torch.full_like(x, self.tau**2)}

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        def step(x: Tensor, m: Tensor, v: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
            m = self.b1 * m + (1.0 - self.b1) * mean
            v = self.second_moment(v, mean.square())
            return x - self.gamma * m / (v.sqrt() + self.tau), m, v

        x, m, v = elementwise(step, server["x"], server["m"], server["v"], sums["update"])
        return {"x": x, "m": m, "v": v}, {"m_norm": float(m.norm())}


@ALGORITHMS.register("fedadagrad", paper="Reddi et al. 2021")
@dataclass
class FedAdagrad(Adaptive):
    """FedAdagrad: Adagrad at the server."""

    b1: Annotated[float, Ge(0), Lt(1), Doc("the decay of m")] = 0.0

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@ALGORITHMS.register("fedadam", paper="Reddi et al. 2021")
@dataclass
class FedAdam(Adaptive):
    """FedAdam: Adam at the server."""

    b2: Annotated[float, Ge(0), Lt(1), Doc("the decay of v")] = 0.99

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.b2 * v + (1.0 - self.b2) * square


@ALGORITHMS.register("fedyogi", paper="Reddi et al. 2021")
@dataclass
class FedYogi(FedAdam):
    """FedYogi: Yogi at the server, whose second moment changes by at most (1 - b2) times the squared mean update."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1.0 - self.b2) * square * torch.sign(v - square)


@ALGORITHMS.register("fedavgm", paper="Hsu et al. 2019")
@dataclass
class FedAvgM(Aggregating):
    """FedAvgM: FedAvg with momentum at the server.

    Hsu, Qi & Brown 2019, sec. 3.

    State    server x, v [d], v = 0 at first; clients none.
    Sent     d floats down (x), d floats up (U_i).
    Assumes  nothing; like FedAvg it minimises a surrogate sum_i Omega_i f_i (weights Omega: see `fedavg`), not F.

        client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
        server   D = sum_{i in R} c_i U_i, c_i from `aggregate`;  v <- beta v + D
                 x <- x - gamma v;  with nesterov x <- x - gamma (D + beta v)

    The momentum is not damped: for a constant D the step grows to gamma D / (1 - beta).
    """

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
