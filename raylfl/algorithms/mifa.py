"""MIFA: the mean of the last updates of all clients, participating or not.

Gu et al., NeurIPS 2021, Alg. 1. Symbols as in `raylfl.algorithms`.

State    server x [d], memory B [seen, d] with a row B_i for each client received so far (B_i = 0 for the
         others), total = sum_i B_i [d]; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  server memory for one update [d] of every client received so far; equal K_i and equal weights w_i:
         otherwise the method minimises a reweighted objective instead of F = sum_i w_i f_i. The paper samples every
         client in round 0 (`init: all`); otherwise a client not yet received counts with B_i = 0.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   B_i <- U_i for i in R, the other B_i stay;  x <- x - gamma (1/N) sum_i B_i

`memory: gradients` is the form of the paper for a learning rate eta_r that changes with the round r (`lr_schedule`):
B_i <- U_i / eta_r,  x <- x - gamma eta_r (1/N) sum_i B_i. A stale update then counts with the present rate; with
`updates` it keeps that of its own round, so that absent clients count more as the rate falls. For a constant eta both
are the same.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.calibration import memory_lr
from raylfl.core.algorithm import Algorithm, Info, ServerState, State
from raylfl.core.chunked_matrix import elementwise
from raylfl.core.client_rows import Table
from raylfl.core.population import Population, Round, SystemInfo
from raylfl.core.reduce import tree_sum, weighted_sum


@ALGORITHMS.register("mifa", paper="Gu et al. 2021")
@dataclass
class MIFA(Algorithm):
    """MIFA: server steps along the mean of the last updates of all clients."""

    gamma: float = 1.0  # server lr
    init: Literal["zero", "all"] = "zero"  # all: every client is sampled in round 0, as in the paper
    # of the last updates, or of these divided by eta (gradients: the paper, for rates that change with the round)
    memory: Literal["updates", "gradients"] = "updates"

    keeps_memory: ClassVar[bool] = True

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "memory": Table(x), "total": torch.zeros_like(x)}

    def full_participation(self, server: ServerState, r: int) -> bool:
        return self.init == "all" and r == 0

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        memory: Table = server["memory"]
        rate, updates = self.gamma / r.population.count, uploads["update"]
        if self.memory == "gradients":
            (updates,), rate = elementwise(lambda update: (update / r.lr,), updates), rate * r.lr

        def step(x: Tensor, total: Tensor, update: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
            total = total + tree_sum(update - old)
            return x - rate * total, total

        x, total = elementwise(step, server["x"], server["total"], updates, memory.view(r.cohort))
        memory.write(r.cohort, updates)
        return {"x": x, "memory": memory, "total": total}, {"seen": float(len(memory))}


@ALGORITHMS.register("fedvarp", paper="Jhunjhunwala et al. 2022")
@dataclass
class FedVARP(Algorithm):
    r"""FedVARP: a server memory of each client's last update, which reduces the variance of partial participation.

    Jhunjhunwala et al., UAI 2022, Alg. 1; `lost: reuse` is the form of FedACS [3] eq. (114).

    State    server x [d], memory B [seen, d] with a row B_i for each client received so far (B_i = 0 for the
             others); with `lost: ignore` also mean [d]; clients none.
    Sent     d floats down (x), d floats up (U_i).
    Assumes  updates that change slowly, as B_i stands for U_i. `lost: ignore`: uniform sampling, each received client
             counts once. `lost: reuse`: M draws with replacement with p = w, s_i of them of client i; B_i replaces U_i
             if client i was sampled (i in S) and its upload is lost, and in no other case.

        client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
        server   ignore   x <- x - gamma ((1/|R|) sum_R (U_i - B_i) + (1/N) sum_j B_j)
                 reuse    x <- x - gamma (1/M) (sum_R s_i U_i + sum_{S \ R} s_i B_i)
                 then B_i <- U_i for i in R
        always   mean = (1/N) sum_j B_j
    """

    gamma: float = 1.0  # server lr
    # ignore: the paper; reuse: FedACS eq. (114), the memory replaces lost uploads
    lost: Literal["ignore", "reuse"] = "ignore"
    calibrate: bool = False  # true: eta is calibrated as in FedACS app. I.2

    keeps_memory: ClassVar[bool] = True

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        server: ServerState = {"x": x.clone(), "memory": Table(x)}
        return server if self.lost == "reuse" else {**server, "mean": torch.zeros_like(x)}

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        memory, updates, new = server["memory"], uploads["update"], dict(server)
        if self.lost == "reuse":
            step = weighted_sum(updates, r.draws / r.total_draws)
            if len(r.lost.cohort):
                step = step + weighted_sum(memory.view(r.lost.cohort), r.lost.draws / r.total_draws)
        else:
            (change,) = elementwise(lambda new, old: (tree_sum(new - old),), updates, memory.view(r.cohort))
            step = change / len(r.cohort) + server["mean"]
            new["mean"] = server["mean"] + change / r.population.count
        memory.write(r.cohort, updates)
        return {**new, "x": server["x"] - self.gamma * step}, {}

    def step_length(self, c: SystemInfo) -> float:
        return memory_lr(c) if self.calibrate else c.lr
