"""FedAWE: clients keep their own models and echo the rounds they missed; implicit gossip.

Xiang et al., NeurIPS 2024, Alg. 1.

State    server x [d]; tau_i, the last round in which i took part, int64 [N], -1 at first;
         client x_i [d], the initial model at first.
Sent     nothing down at the start, d floats up, d floats down (the new x) to the clients that were received.
         Up goes x_i'; here it goes as U_i beside x_i, which the server sent itself in round tau_i.
Assumes  nothing about participation, which may change over time; equal K_i for F itself.

    client   x_i,0 = x_i;  x <- x - eta grad f_i(x), K_i times from x_i;  U_i = x_i - x_i,K
             x_i' = x_i - gamma (r - tau_i) U_i
    server   x <- (1/|R|) sum_R x_i'
    then     x_i <- x, tau_i <- r for i in R
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.population import Population, Round
from raylfl.core.reduce import column, tree_sum


@ALGORITHMS.register("fedawe", paper="Xiang et al. 2024")
@dataclass
class FedAWE(Algorithm):
    """FedAWE: own models at the clients, updates multiplied by the rounds since the last participation."""

    gamma: float = 1.0  # server lr, the paper's eta_g

    known: ClassVar[tuple[str, ...]] = ("start",)

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "tau": torch.full((population.count,), -1, dtype=torch.int64)}

    def init_clients(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1)}

    def broadcast(self, server: ServerState) -> State:
        return {}

    def start_point(self, down: State, own: State) -> Tensor:
        return own["x"]

    def finish(self, x: Tensor, carry: State, own: State, work: Work) -> tuple[State, State]:
        return {"update": own["x"] - x, "start": own["x"]}, own

    def server_step(self, server: ServerState, up: State, r: Round) -> tuple[ServerState, Info]:
        here, tau = torch.from_numpy(r.cohort), server["tau"].clone()
        missed = r.index - tau[here]
        models = up["start"] - column(self.gamma * missed.double(), up["update"]) * up["update"]
        tau[here] = r.index
        return {"x": tree_sum(models) / len(r.cohort), "tau": tau}, {"echo_max": float(missed.max())}

    def answer(self, server: ServerState) -> State:
        return {"x": server["x"]}

    def acknowledge(self, server: ServerState, up: State, own: State, r: Round) -> State | None:
        return {"x": server["x"].expand_as(own["x"])}
