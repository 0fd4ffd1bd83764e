"""FedAU: aggregation weights estimated online from the intervals between a client's participations.

Wang & Ji, ICLR 2024, Alg. 1 and Alg. 2. Symbols as in `raylfl.algorithms`.

State    server x [d]; for each client W_i, its mean interval between participations, float64 [N], 1 at first;
         S_i, the rounds since its last participation, and the number of intervals in W_i, int64 [N]; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  stationary, independent participation with probabilities p_i, as W_i estimates 1/p_i; equal K_i.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   x <- x - gamma (1/N) sum_R W_i U_i, with the W_i of earlier rounds
    then     for every i: S_i <- S_i + 1; if i in R or S_i = cutoff, an interval of length S_i ends:
             W_i <- mean length of all intervals of i that ended so far, S_i <- 0

Rounds without a received upload count as well.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.components.options import Doc, Ge
from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.arrays import Ints
from raylfl.core.population import Population, Round
from raylfl.core.summing import Coefficients, Summing


@ALGORITHMS.register("fedau", paper="Wang & Ji 2024")
@dataclass
class FedAU(Summing):
    """FedAU: each update is weighted by the client's mean interval between participations."""

    gamma: float = 1.0  # server lr
    cutoff: Annotated[int, Ge(1), Doc("the rounds after which an interval ends without a participation")] = 50
    normalize: bool = False  # true departs from the paper: divides by sum_R W_i instead of N
    calibrate: bool = False  # no effect: FedACS app. I.2 leaves this method's eta unchanged

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        counters = torch.zeros(population.count, dtype=torch.int64)
        weight = torch.ones(population.count, dtype=torch.float64)
        return {"x": x.clone(), "weight": weight, "waited": counters, "intervals": counters.clone()}

    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        weight = server["weight"][torch.from_numpy(r.cohort)].numpy()
        return {"update": weight / (weight.sum() if self.normalize else r.population.count)}

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        counted = self._count_intervals(server, r.cohort)
        x = server["x"] - self.gamma * sums["update"]
        return {**counted, "x": x}, {"weight_max": float(counted["weight"].max())}

    def empty_round(self, server: ServerState, r: Round) -> ServerState:
        return self._count_intervals(server, r.cohort[:0])

    def _count_intervals(self, server: ServerState, received: Ints) -> ServerState:
        waited, intervals = server["waited"] + 1, server["intervals"]
        ends = waited == self.cutoff
        ends[torch.from_numpy(received)] = True
        mean = (intervals * server["weight"] + waited) / (intervals + 1)
        return {
            **server,
            "weight": torch.where(ends, mean, server["weight"]),
            "waited": torch.where(ends, 0, waited),
            "intervals": intervals + ends,
        }
