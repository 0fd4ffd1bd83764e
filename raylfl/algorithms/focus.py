"""FOCUS and SG-FOCUS: exact convergence under arbitrary participation, by push-pull.

Ying, Li & Yang, NeurIPS 2025, Alg. 1; in matrix form, eqs. (13)-(14). Symbols as in `raylfl.algorithms`.

State    server x and the tracked sum of gradients y [d], y = 0 at first; client g_prev_i [d], its last gradient, 0 at
         first.
Sent     d floats down (x), d floats up (y_i); clients pull x and push y_i, never the reverse.
Assumes  nothing about participation; exact for full-batch gradients (FOCUS), down to the noise floor for mini-batches
         (SG-FOCUS). The subtracted g_prev_i is always the stored gradient, never recomputed on another batch.

    client   y_i = 0, x_i = x;  K times
             g = grad f_i(x_i);  y_i <- y_i + g - g_prev_i;  g_prev_i <- g;  x_i <- x_i - eta y_i
    server   y <- y + sum_{i in R} y_i;  x <- x - gamma y
    always   y = sum_i g_prev_i after a round (tracking)

With importance weights w the gradient of client i is multiplied by N w_i. The limit is then the minimiser of
sum_i w_i f_i; for uniform weights the factor is 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import relative_weights, tracking
from raylfl.core.algorithm import Info, ServerState, State, Work
from raylfl.core.chunked_matrix import elementwise
from raylfl.core.population import Population, Round
from raylfl.core.summing import Coefficients, Summing


@ALGORITHMS.register("focus", paper="Ying et al. 2025 [1]")
@dataclass
class Focus(Summing):
    """FOCUS / SG-FOCUS: gradient tracking by push-pull, with exact convergence under any participation."""

    gamma: float | None = None  # server lr; null: the round's eta, as in Alg. 1

    own_step: ClassVar[bool] = True
    uploads_update: ClassVar[bool] = False

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "y": torch.zeros_like(x)}

    def init_clients(self, x: Tensor, count: int) -> State:
        return {"g_prev": x.new_zeros(count, x.numel())}

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        g_prev = client_state["g_prev"]
        return {"y": torch.zeros_like(g_prev), "g_prev": g_prev} | relative_weights(work, g_prev)

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        carry = tracking(g, carry)  # Alg. 1, line 9 prints x_{k,i}; x_{t,i} is meant.
        return carry["y"], carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"y": carry["y"]}, {"g_prev": carry["g_prev"]}

    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        return {"y": 1.0}  # not averaged: a stable gamma scales as 1/N

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        gamma = r.lr if self.gamma is None else self.gamma

        def step(x: Tensor, y: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
            y = y + change
            return x - gamma * y, y

        x, y = elementwise(step, server["x"], server["y"], sums["y"])
        return {"x": x, "y": y}, {"y_norm": float(y.norm())}
