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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm, Info, ServerState, State
from raylfl.core.client_rows import Table
from raylfl.core.elementwise import elementwise
from raylfl.core.population import Population, Round
from raylfl.core.reduce import tree_sum


@ALGORITHMS.register("mifa", paper="Gu et al. 2021")
@dataclass
class MIFA(Algorithm):
    """MIFA: server steps along the mean of the last updates of all clients."""

    gamma: float = 1.0  # server lr
    init: Literal["zero", "all"] = "zero"  # all: every client is sampled in round 0, as in the paper

    keeps_memory: ClassVar[bool] = True

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "memory": Table(x), "total": torch.zeros_like(x)}

    def full_participation(self, server: ServerState, r: int) -> bool:
        return self.init == "all" and r == 0

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        memory: Table = server["memory"]
        rate = self.gamma / r.population.count

        def step(x: Tensor, total: Tensor, update: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
            total = total + tree_sum(update - old)
            return x - rate * total, total

        x, total = elementwise(step, server["x"], server["total"], uploads["update"], memory.view(r.cohort))
        memory.write(r.cohort, uploads["update"])
        return {"x": x, "memory": memory, "total": total}, {"seen": float(len(memory))}
