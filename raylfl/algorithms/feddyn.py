"""FedDyn: dynamic regularisation by which the minimisers of the local objectives and of F agree.

Acar et al., ICLR 2021, Alg. 1, with local SGD as the inexact solver. Symbols as in `raylfl.algorithms`.

State    server x, h [d], h = 0 at first; client h_i [d], 0 at first (the paper's grad L_i).
Sent     d floats down (x), d floats up (U_i).
Assumes  nothing about participation.

    client   x_i <- x_i - eta (grad f_i(x_i) - h_i + alpha (x_i - x)), K_i times from x;  U_i = x - x_i
             h_i <- h_i + alpha U_i
    server   h <- h + (alpha/N) sum_R U_i;  x <- x - (1/|R|) sum_R U_i - h / alpha
    always   h = (1/N) sum_i h_i
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.components.options import Doc, Gt
from raylfl.core.algorithm import Info, ServerState, State, Work
from raylfl.core.population import Population, Round
from raylfl.core.summing import Coefficients, Summing


@ALGORITHMS.register("feddyn", paper="Acar et al. 2021")
@dataclass
class FedDyn(Summing):
    """FedDyn: dynamic regularisation of the local objectives, which removes the error of client drift."""

    alpha: Annotated[float, Gt(0), Doc("the regularisation, by which the server divides")] = (
        0.01  # the paper: 0.1, 0.01 or 0.001, by data set
    )

    @property
    def proximal(self) -> float:
        return self.alpha

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "h": torch.zeros_like(x)}

    def init_clients(self, x: Tensor, count: int) -> State:
        return {"h": x.new_zeros(count, x.numel())}

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        return {"h": client_state["h"]}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        # x - x_start first: alpha x and alpha x_start would cancel
        return torch.add(g - carry["h"], x - carry["x_start"], alpha=self.alpha), carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        update = carry["x_start"] - x
        return {"update": update}, {"h": torch.add(client_state["h"], update, alpha=self.alpha)}

    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        return {"update": 1.0}

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        total = sums["update"]
        h = server["h"] + self.alpha / r.population.count * total
        x = server["x"] - total / len(r.cohort) - h / self.alpha
        return {"x": x, "h": h}, {"h_norm": float(h.norm())}
