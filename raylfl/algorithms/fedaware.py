"""FedAWARE: server steps along the min-norm combination of client momenta, which has the largest gradient diversity.

Zeng, Xu, Pan, Wang & Tang 2024 [4], Alg. 1, eq. (8). Symbols as in `raylfl.algorithms`.

State    server x [d]; momenta M [seen, d], a row m_i for each client received so far; lengths |m_i| [seen], float64;
         members, int64 [m]: the row numbers in M of the working set, from which the solver for lambda starts; gram,
         float64 [m, m]: the inner products of these rows; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  server memory for one momentum [d] of every client received so far.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   m_i <- alpha m_i + (1 - alpha) U_i for i in R, m_i = U_i at i's first upload; the other m_i stay
             lambda = argmin |sum_i lambda_i m_i|^2, lambda_i >= 0, sum 1, over all clients received so far
             x <- x - gamma sum_i lambda_i m_i

The metric algo/chi2 is sum_i (lambda_i / w_i)^2 with this lambda, the chi-square term of Theorems 4.1 and 4.2.

A momentum of exactly 0 is excluded: with it the minimum would be 0, and the model would not move again.

warmup     active: the step above from the first round on. fedavg: x <- x - gamma sum_R c_i U_i with c_i from
           `aggregate` until every client has been received once. all: every client is sampled in round 0.
normalize  true, as in the authors' public code: m_i / |m_i| replaces m_i in lambda and in the step, and alpha
           multiplies the new update: m_i <- (1 - alpha) m_i + alpha U_i.

Inner products of momenta are float64 for any dtype of x. A round only computes the inner products of momenta that
changed or that enter the working set; all other inner products are kept (`raylfl.solvers.working_set`).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import RULES, Rule
from raylfl.components.options import Doc, Ge, Gt, Le
from raylfl.core.algorithm import Algorithm, Info, ServerState, State
from raylfl.core.chunked_matrix import norms
from raylfl.core.client_rows import Table
from raylfl.core.population import Population, Round
from raylfl.core.reduce import column
from raylfl.solvers.working_set import WorkingSet, min_norm_working_set


@ALGORITHMS.register("fedaware", paper="Zeng et al. 2024 [4]")
@dataclass
class FedAWARE(Algorithm):
    """FedAWARE: server steps along the min-norm convex combination of client momenta."""

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5  # weight of the old momentum; with normalize, of the new update
    gamma: float = 1.0  # server lr
    # null: 1e-6 in float32, 1e-12 in float64
    tol: Annotated[float, Gt(0), Doc("the relative duality gap to stop at")] | None = None
    warmup: Annotated[
        Literal["active", "fedavg", "all"],
        Doc(
            "active: min-norm steps from round 0 on; fedavg: FedAvg's until every client was received once; all: every "
            "client is sampled in round 0"
        ),
    ] = "active"
    aggregate: Rule = "mean"  # the aggregation rule of warmup=fedavg
    normalize: bool = False  # true: momenta divided by their norms, as in the authors' public code, not Alg. 1

    keeps_memory: ClassVar[bool] = True

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {
            "x": x.clone(),
            "momenta": Table(x),
            "lengths": torch.zeros(0, dtype=torch.float64),
            **_state(WorkingSet.none()),
        }

    def full_participation(self, server: ServerState, r: int) -> bool:
        return self.warmup == "all" and r == 0

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        momenta: Table = server["momenta"]
        seen = np.array([client in momenta for client in r.cohort])
        keep = column(np.where(seen, 1.0 - self.alpha if self.normalize else self.alpha, 0.0), server["x"])
        momenta.change(r.cohort, lambda old, update: keep * old + (1.0 - keep) * update, uploads["update"])
        changed = momenta.positions(r.cohort)
        lengths = torch.cat([server["lengths"], torch.zeros(int((~seen).sum()), dtype=torch.float64)])
        lengths[changed] = norms(momenta.view(r.cohort), torch.float64).cpu()
        info, members = {"active": float(len(momenta))}, WorkingSet.none()
        if self.warmup == "fedavg" and len(momenta) < r.population.count:
            step = RULES[self.aggregate].sum(uploads["update"], r)
        else:
            tol = self.tol if self.tol is not None else (1e-6 if server["x"].dtype == torch.float32 else 1e-12)
            start = WorkingSet(server["members"].numpy(), server["gram"].numpy())
            solution = min_norm_working_set(
                momenta.matrix, lengths.numpy(), start, changed.numpy(), tol, self.normalize
            )
            step, members = solution.point.to(server["x"].dtype), solution.members
            info |= {"support": float(np.count_nonzero(solution.weights)), "gap": solution.gap}
            simplex = solution.weights * lengths.numpy() if self.normalize else solution.weights
            used, weights = simplex > 0, r.population.weights[momenta.clients]
            with np.errstate(divide="ignore"):  # inf for a client of weight 0
                info["chi2"] = float(np.square(simplex[used] / weights[used]).sum())
        new = {"x": server["x"] - self.gamma * step, "momenta": momenta, "lengths": lengths, **_state(members)}
        return new, info


def _state(members: WorkingSet) -> dict[str, Tensor]:
    return {"members": torch.from_numpy(members.rows), "gram": torch.from_numpy(members.gram)}
