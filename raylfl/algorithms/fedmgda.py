"""FedMGDA+: server steps along a common descent direction, a min-norm combination near the weighted average.

Hu, Shaloudegi, Zhang & Yu, IEEE TNSE 2022, Alg. 1. Symbols as in `raylfl.algorithms`.

State    server x [d]; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  nothing; converges to a Pareto-stationary point of (f_1, ..., f_N) rather than to a minimum of F.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   u_i = U_i / |U_i|
             lambda = argmin |sum_R lambda_i u_i|^2 over the simplex with |lambda - lambda0|_inf <= eps
             x <- x - gamma sum_R lambda_i u_i

lambda0 is w normalised over R; eps is the largest allowed |lambda_i - lambda0_i|. Clients with U_i = 0 have
lambda_i = lambda0_i = 0.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from raylfl.algorithms import ALGORITHMS
from raylfl.components.options import Doc, Ge, Gt, Le
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, normalise
from raylfl.core.chunked_matrix import select
from raylfl.core.population import Round
from raylfl.core.reduce import weighted_sum
from raylfl.solvers.gram import inner_products_f64
from raylfl.solvers.simplex import min_norm_point


@ALGORITHMS.register("fedmgda", paper="Hu et al. 2022")
@dataclass
class FedMGDA(Algorithm):
    """FedMGDA+: server steps along the min-norm combination of normalised updates, a common descent direction."""

    gamma: float = 1.0  # server lr: the largest length of the step, as the updates are normalised
    # 1: the whole simplex (MGDA); 0: lambda = lambda0, FedAvg on normalised updates
    eps: Annotated[float, Ge(0), Le(1), Doc("the largest deviation of an entry of lambda from lambda0")] = 1.0
    tol: Annotated[float, Gt(0), Doc("the relative duality gap to stop at")] = 1e-12

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        gram = inner_products_f64(uploads["update"], uploads["update"])
        norms = gram.diagonal().clamp(min=0.0).sqrt()
        moved = torch.nonzero(norms > 0).flatten()
        if len(moved) == 0:
            return server, {"support": 0.0}
        unit = 1.0 / norms[moved]
        centre = normalise(r.weights[moved.cpu().numpy()])
        solution = min_norm_point(gram[moved][:, moved] * unit[:, None] * unit, self.tol, centre, self.eps)
        step = weighted_sum(select(uploads["update"], moved.tolist()), solution.weights * unit.cpu().numpy())
        info = {"support": float(solution.support), "gap": solution.gap}
        return {"x": server["x"] - self.gamma * step}, info
