"""FedACS: client sampling that cancels unreliable links and unequal local work in the expected step.

Weng, Ren, Xiao & Skoglund 2025 [3], Alg. 1, eqs. (15), (18). Symbols as in `raylfl.algorithms`.

State    server x [d]; with `estimate: ema` also estimates q, a [N] of q_i and |a_i|_1, float64, and the counts
         times_sampled, times_received [N], int64; clients none.
Sent     d floats down (x), d floats up (U_i), and the number |a_i|_1, which is not counted as traffic.
Assumes  failure probabilities q_i and local steps K_i known before the round, or steady enough to be estimated.

    sampling p_i ~ w_i / ((1-q_i) |a_i|_1) over the available clients; M draws with replacement, s_i of them of i
    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   x <- x - gamma (1/M) sum_{i in R} s_i U_i
    always   Omega_i ~ p_i (1-q_i) |a_i|_1 ~ w_i: the minimised surrogate sum_i Omega_i f_i is F itself

|a_i|_1 is the local work of client i, K_i for plain SGD; q_i is the failure probability of its link. A client with
q_i = 1 or |a_i|_1 = 0 is excluded, because its expected contribution is 0 for every p_i.

`estimate: ema` estimates q and a from earlier rounds, including rounds without received uploads:

    i sampled    q_i <- q_i + max(rate, 1/(n+1)) (1{lost} - q_i), n = times_sampled
    i received   a_i <- a_i + max(rate, 1/n) (|a_i|_1 - a_i), n = times_received

Both counts n include this round. An estimate is the plain mean of up to 1/rate observations and an exponential moving
average of more; with rate = 0 it is always the plain mean. The mean of q_i begins with one fictitious received upload.
Until client i is received, the sampling uses the mean a of the clients received so far in place of a_i, or 1 if there
is none. The sampling also limits q_i to 0.95.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import Aggregating
from raylfl.algorithms.calibration import fedacs_lr
from raylfl.components.options import Doc, Ge, Lt
from raylfl.core.algorithm import Info, ServerState, State, normalised_over
from raylfl.core.arrays import Floats
from raylfl.core.population import Population, Round, SystemInfo
from raylfl.errors import BadValue

COUNTS = ("times_sampled", "times_received")
MOST_FAILURE = 0.95  # bound of an estimated q_i: without it a client that is never received would take all draws


@ALGORITHMS.register("fedacs", paper="Weng et al. 2025 [3]")
@dataclass
class FedACS(Aggregating):
    """FedACS: client sampling that corrects for unreliable links and unequal local work in the expected step."""

    weighs_by_work: ClassVar[bool] = True
    aggregate = "anonymous"

    gamma: float = 1.0  # server lr
    # known: the q_i and K_i of the round; ema: estimates from earlier rounds
    estimate: Literal["known", "ema"] = "known"
    # 0.05 averages over about 20 observations, so that the estimate of 1/(1-q) has little bias
    rate: Annotated[float, Ge(0), Lt(1), Doc("the least weight of the newest observation")] = 0.05
    calibrate: bool = False  # true: eta is calibrated as in FedACS app. I.2, with the true q and K

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        if self.estimate == "known":
            return {"x": x.clone()}
        estimates = {name: torch.zeros(population.count, dtype=torch.float64) for name in ("q", "a")}
        counters = {name: torch.zeros(population.count, dtype=torch.int64) for name in COUNTS}
        return {"x": x.clone(), **estimates, **counters}

    def probabilities(self, server: ServerState, c: SystemInfo) -> Floats | None:
        q, a = c.failure, c.a_norm
        if self.estimate == "ema":
            q, a, seen = (server[name].cpu().numpy() for name in ("q", "a", "times_received"))
            q = np.minimum(q, MOST_FAILURE)
            a = np.where(seen > 0, a, a[seen > 0].mean() if seen.any() else 1.0)
        elif (np.isnan(q) & c.available).any():
            raise BadValue("estimate", got="known", need="ema where failure probabilities are not known")
        work = np.where(c.available, (1.0 - q) * a, 0.0)
        scores = np.divide(c.population.weights, work, out=np.zeros(len(work)), where=work > 0)
        return normalised_over(scores, c.available)

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        return {**self._update_estimates(server, r), "x": server["x"] - self.gamma * sums["update"]}, {}

    def empty_round(self, server: ServerState, r: Round) -> ServerState:
        return self._update_estimates(server, r)

    def step_length(self, c: SystemInfo) -> float:
        return fedacs_lr(c) if self.calibrate else c.lr

    def _update_estimates(self, server: ServerState, r: Round) -> ServerState:
        if self.estimate == "known":
            return server
        new = {name: server[name].cpu().numpy().copy() for name in ("q", "a", *COUNTS)}
        unfiltered = r.unfiltered or r
        got = unfiltered.received_view
        new["times_sampled"][unfiltered.cohort] += 1
        new["times_received"][got.cohort] += 1
        lost = 1.0 - unfiltered.received.astype(np.float64)
        for name, i, seen, n in (
            ("q", unfiltered.cohort, lost, new["times_sampled"][unfiltered.cohort] + 1),
            ("a", got.cohort, got.a_norm, new["times_received"][got.cohort]),
        ):
            new[name][i] += np.maximum(self.rate, 1.0 / n) * (seen - new[name][i])
        return {**server, **{name: torch.from_numpy(values) for name, values in new.items()}}
