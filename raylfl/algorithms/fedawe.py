"""FedAWE: models kept at the clients, updates multiplied by the rounds since the last participation ("echo").

Xiang et al., NeurIPS 2024, Alg. 1. Symbols as in `raylfl.algorithms`.

State    server x [d]; tau_i, the last round in which client i was received, int64 [N], -1 at first;
         client x_i [d], the initial model at first.
Sent     nothing down at the start of a round; d floats up; at the end of the round d floats down (the new x) to the
         received clients. The paper uploads x_i'. Here the uploads are U_i and x_i; x_i is not counted as traffic,
         because the server sent it in round tau_i.
Assumes  nothing about participation, which may change over time; equal K_i and equal weights w_i: otherwise the method
         minimises a reweighted objective instead of F = sum_i w_i f_i.

    client   x_i,0 = x_i;  x_i,k+1 = x_i,k - eta grad f_i(x_i,k), k < K = K_i;  U_i = x_i - x_i,K
             x_i' = x_i - gamma (r - tau_i) U_i
    server   x <- (1/|R|) sum_R x_i'   ("implicit gossip" among the received clients)
    then     x_i <- x, tau_i <- r for i in R
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.chunked_matrix import elementwise
from raylfl.core.population import Population, Round
from raylfl.core.reduce import column, tree_sum


@ALGORITHMS.register("fedawe", paper="Xiang et al. 2024")
@dataclass
class FedAWE(Algorithm):
    """FedAWE: clients keep models; an update is multiplied by the rounds since the client's last participation."""

    gamma: float = 1.0  # server lr, the paper's eta_g

    server_known: ClassVar[tuple[str, ...]] = ("start",)

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "tau": torch.full((population.count,), -1, dtype=torch.int64)}

    def init_clients(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1)}

    def broadcast(self, server: ServerState) -> State:
        return {}

    def start_point(self, broadcast: State, client_state: State) -> Tensor:
        return client_state["x"]

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"update": client_state["x"] - x, "start": client_state["x"]}, client_state

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        received, tau = torch.from_numpy(r.cohort), server["tau"].clone()
        missed = r.index - tau[received]
        echo = column(self.gamma * missed.double(), server["x"])

        def mean_model(start: Tensor, update: Tensor) -> tuple[Tensor]:
            return (tree_sum(start - echo * update) / len(r.cohort),)

        (x,) = elementwise(mean_model, uploads["start"], uploads["update"])
        tau[received] = r.index
        return {"x": x, "tau": tau}, {"echo_max": float(missed.max())}

    def second_broadcast(self, server: ServerState) -> State:
        return {"x": server["x"]}

    def update_clients(self, server: ServerState, uploads: State, client_state: State, r: Round) -> State | None:
        return {"x": server["x"].expand_as(client_state["x"])}
