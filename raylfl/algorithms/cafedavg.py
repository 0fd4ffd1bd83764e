"""c-a-FedAvg: communication-aware FedAvg, each upload divided by its probability of being received.

Perazzone et al. 2022 as in FedACS [3] eq. (113). Symbols as in `raylfl.algorithms`.

State    server x [d]; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  known failure probabilities q_i; M draws with replacement with p = w, s_i of them of client i. The division
         corrects for links, not for unequal K_i: the method minimises sum_i Omega_i f_i with Omega_i ~ w_i |a_i|_1
         (w_i K_i for plain SGD).

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   x <- x - gamma (1/M) sum_{i in R} s_i U_i / (1 - q_i)
"""

from dataclasses import dataclass

import numpy as np

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import expected_share
from raylfl.algorithms.calibration import memory_lr
from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.arrays import Floats
from raylfl.core.draws import Law
from raylfl.core.population import Round, SystemInfo
from raylfl.core.summing import Coefficients, Summing
from raylfl.errors import BadValue


@ALGORITHMS.register("cafedavg", paper="Perazzone et al. 2022; FedACS [3] eq. (113)")
@dataclass
class CAFedAvg(Summing):
    """c-a-FedAvg: FedAvg with each update divided by the probability that its upload is received."""

    gamma: float = 1.0  # server lr
    calibrate: bool = False  # true: eta is calibrated as in FedACS app. I.2

    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        if np.isnan(r.failure).any():
            raise BadValue(
                "name", got="cafedavg", need="another method: the failure probabilities q_i are not known here"
            )
        return {"update": r.draws / (r.total_draws * (1.0 - r.failure))}

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        return {"x": server["x"] - self.gamma * sums["update"]}, {}

    def expected_coefficients(
        self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement"
    ) -> Floats | None:
        shares = expected_share(marginals, law)
        return None if shares is None else np.where(c.failure < 1, shares, 0.0)  # 1 - q_i cancels

    def step_length(self, c: SystemInfo) -> float:
        return memory_lr(c) if self.calibrate else c.lr
