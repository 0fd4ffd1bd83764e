"""FedAWARE: the server steps along the shortest combination of client momenta, of largest gradient diversity.

Zeng, Xu, Pan, Wang & Tang 2024 [4], Alg. 1, eq. (8).

State    server x [d], momenta M [seen, d], gram G = M M^T [seen, seen] float64, in the order of the rows;
         clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  memory for one momentum a client seen and for their Gram matrix: thousands of clients, not millions.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   m_i <- alpha m_i + (1 - alpha) U_i for i in R, m_i = U_i at the first; the others keep theirs
             lambda = argmin |sum lambda_i m_i|^2 over the simplex, over all clients received so far
             x <- x - gamma sum lambda_i m_i
    always   gram = M M^T

A momentum of exactly 0 is left out: with it the minimum would be 0, and the model would not move again.

`warmup`: active, lambda from the first round on; fedavg, x <- x - gamma sum_R c_i U_i by the rule `aggregate`
until every client has been received (the round that completes them solves already); all, everyone is asked in
round 0. `normalize: true` is the authors' public code: m_i / |m_i| in place of m_i in lambda and in the step,
and alpha multiplies the new update: m_i <- (1 - alpha) m_i + alpha U_i.

G is accumulated in float64 whatever the dtype of x, and updated by the rows of the clients received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms.aggregation import check_rule, coefficients
from raylfl.algorithms.base import ALGORITHMS, Algorithm, Info, ServerState, State
from raylfl.algorithms.simplex import MinNorm, min_norm_point, updated_gram
from raylfl.core.population import Floats, Population, Round
from raylfl.core.reduce import column, weighted_sum
from raylfl.core.table import Table
from raylfl.errors import BadValue

BLOCK = 1 << 21  # entries of the momenta summed at a time


@ALGORITHMS.register("fedaware", paper="Zeng et al. 2024 [4]")
@dataclass
class FedAWARE(Algorithm):
    """FedAWARE: steps along the shortest convex combination of client momenta."""

    alpha: float = 0.5  # of the old momentum; of the new update with normalize
    gamma: float = 1.0  # server lr
    tol: float | None = None  # relative duality gap of lambda; null: 1e-6 in float32, 1e-12 in float64
    warmup: str = "active"
    aggregate: str = "mean"  # the rule of warmup=fedavg
    normalize: bool = False  # true: the authors' public code, not Alg. 1

    keeps_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise BadValue("alpha", got=self.alpha, need="in [0, 1]")
        if self.tol is not None and not self.tol > 0:
            raise BadValue("tol", got=self.tol, need="> 0, the relative duality gap to stop at")
        if self.warmup not in ("active", "fedavg", "all"):
            raise BadValue("warmup", got=self.warmup, need="active, fedavg or all")
        check_rule(self.aggregate)

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "momenta": Table(x), "gram": x.new_zeros((0, 0), dtype=torch.float64)}

    def everybody(self, server: ServerState, r: int) -> bool:
        return self.warmup == "all" and r == 0

    def server_step(self, server: ServerState, up: State, r: Round) -> tuple[ServerState, Info]:
        momenta: Table = server["momenta"]
        seen = np.array([client in momenta for client in r.cohort])
        keep = column(np.where(seen, 1.0 - self.alpha if self.normalize else self.alpha, 0.0), up["update"])
        momenta.write(r.cohort, keep * momenta.rows(r.cohort) + (1.0 - keep) * up["update"])
        gram = updated_gram(server["gram"], momenta.matrix, momenta.positions(r.cohort))
        info = {"active": float(len(momenta))}
        if self.warmup == "fedavg" and len(momenta) < r.population.count:
            step = weighted_sum(up["update"], coefficients(self.aggregate, r))
        else:
            weights, found = self._weights(gram.cpu(), up["update"].dtype)
            step = _combination(momenta.matrix, weights)
            info |= {"support": float(np.count_nonzero(weights)), "gap": found.gap}
        return {"x": server["x"] - self.gamma * step, "momenta": momenta, "gram": gram}, info

    def _weights(self, gram: Tensor, dtype: torch.dtype) -> tuple[Floats, MinNorm]:
        """What multiplies the momenta [n]: lambda, or lambda_i / |m_i| with `normalize`; and the solution."""
        norms, weights = gram.diagonal().clamp(min=0.0).sqrt(), np.zeros(len(gram))
        moved = torch.nonzero(norms > 0).flatten()
        if len(moved) == 0:
            return weights, MinNorm(weights, 0.0, 0.0, 0)
        tol = self.tol if self.tol is not None else (1e-6 if dtype == torch.float32 else 1e-12)
        gram, unit = gram if len(moved) == len(gram) else gram[moved][:, moved], 1.0 / norms[moved]
        if self.normalize:
            gram = gram * unit[:, None] * unit
        found = min_norm_point(gram, tol)
        weights[moved.numpy()] = found.weights * unit.numpy() if self.normalize else found.weights
        return weights, found


def _combination(matrix: Tensor, weights: Floats) -> Tensor:
    """sum_i weights_i matrix[i], [n, d] and [n] -> [d]: over the support, some columns at a time."""
    support = np.flatnonzero(weights)
    if len(support) == 0:
        return matrix.new_zeros(matrix.shape[1])
    rows, width = torch.from_numpy(support), max(BLOCK // len(support), 1)
    blocks = [weighted_sum(block[rows], weights[support]) for block in matrix.split(width, dim=1)]
    return torch.cat(blocks)
