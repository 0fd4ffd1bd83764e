"""FedAdagrad, FedAdam, FedYogi: an adaptive optimiser at the server, applied to the mean update.

Reddi et al., ICLR 2021, Alg. 2.

State    server x, m, v [d], m = 0 and v = tau^2 at first; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  nothing; like FedAvg it follows the surrogate sum_i Omega_i f_i, not F.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   D = sum_{i in R} c_i U_i;  m <- b1 m + (1 - b1) D
             adagrad  v <- v + D^2
             adam     v <- b2 v + (1 - b2) D^2
             yogi     v <- v - (1 - b2) D^2 sign(v - D^2)
             x <- x - gamma m / (sqrt(v) + tau)

No bias correction. gamma is about how far a coordinate moves in a round.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import Aggregating, check_rule
from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.population import Population, Round
from raylfl.errors import BadValue


@dataclass
class Adaptive(Aggregating):
    """Common part of FedAdagrad, FedAdam and FedYogi; subclasses define `second_moment`."""

    gamma: float = 0.01  # server lr; the paper tunes it, 0.001 to 1
    b1: float = 0.9
    tau: float = 1e-4  # degree of adaptivity
    aggregate: str = "mean"

    def __post_init__(self) -> None:
        if not 0 <= self.b1 < 1:
            raise BadValue("b1", got=self.b1, need="in [0, 1), the decay of m")
        if not self.tau > 0:
            raise BadValue("tau", got=self.tau, need="> 0, it keeps the denominator away from 0")
        check_rule(self.aggregate)

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The new v [d] from the old one and D^2."""

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "m": torch.zeros_like(x), "v": torch.full_like(x, self.tau**2)}

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        mean = self.rule.sum(uploads["update"], r)
        m = self.b1 * server["m"] + (1.0 - self.b1) * mean
        v = self.second_moment(server["v"], mean.square())
        x = server["x"] - self.gamma * m / (v.sqrt() + self.tau)
        return {"x": x, "m": m, "v": v}, {"m_norm": float(m.norm())}


@ALGORITHMS.register("fedadagrad", paper="Reddi et al. 2021")
@dataclass
class FedAdagrad(Adaptive):
    """FedAdagrad: Adagrad at the server."""

    b1: float = 0.0

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@ALGORITHMS.register("fedadam", paper="Reddi et al. 2021")
@dataclass
class FedAdam(Adaptive):
    """FedAdam: Adam at the server."""

    b2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.b2 < 1:
            raise BadValue("b2", got=self.b2, need="in [0, 1), the decay of v")

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.b2 * v + (1.0 - self.b2) * square


@ALGORITHMS.register("fedyogi", paper="Reddi et al. 2021")
@dataclass
class FedYogi(FedAdam):
    """FedYogi: Yogi at the server, whose v moves by no more than (1 - b2) D^2."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1.0 - self.b2) * square * torch.sign(v - square)
