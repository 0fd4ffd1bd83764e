"""FedNova: normalised averaging, each update divided by its own local work.

Wang et al., NeurIPS 2020; `normalise: sent` is the form of FedACS [3] eq. (116). Symbols as in `raylfl.algorithms`.

State    server x [d]; clients none.
Sent     d floats down (x), d floats up (U_i), and the number |a_i|_1, which is not counted as traffic.
Assumes  nothing about K_i. `normalise: received` assumes full participation, or a sampling scheme in which the expected
         share of client i in the average is w_i; lossy links bias it towards clients with reliable links.
         `normalise: sent` assumes M draws with replacement with p = w, s_i of them of client i, and known K_i and q_i.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   n_i = U_i / (eta |a_i|_1);  w'_i = w_i / sum_R w_j
             received   x <- x - gamma eta tau sum_R w'_i n_i,       tau = sum_R w'_i |a_i|_1
             sent       x <- x - gamma eta tau (1/M) sum_R s_i n_i,  tau = sum w (1-q) |a|_1 / sum w (1-q)

|a_i|_1 is the local work of client i, K_i for plain SGD; q_i is its failure probability. Sums without an index set are
over all N clients. A client that took no step has n_i = 0.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import expected_share
from raylfl.core.algorithm import Info, ServerState, State, normalise
from raylfl.core.arrays import Floats
from raylfl.core.draws import Law, fixed_set
from raylfl.core.population import Round, SystemInfo
from raylfl.core.summing import Coefficients, Summing
from raylfl.errors import BadValue


@ALGORITHMS.register("fednova", paper="Wang et al. 2020")
@dataclass
class FedNova(Summing):
    """FedNova: updates divided by their local work, which corrects for unequal numbers of local steps."""

    weighs_by_work: ClassVar[bool] = True

    gamma: float = 1.0  # server lr
    normalise: Literal["received", "sent"] = "received"  # received: Wang et al.; sent: FedACS eq. (116)
    calibrate: bool = False  # FedACS app. I.2 defines it for `sent` and leaves this method's eta unchanged

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibrate and self.normalise != "sent":
            raise BadValue("calibrate", got=True, need="false unless normalise=sent, FedACS eq. (116)")

    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        shares = r.draws / r.total_draws if self.normalise == "sent" else normalise(r.weights)
        return {"update": self._tau(r) * _per_work(shares, r.a_norm)}

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        return {"x": server["x"] - self.gamma * sums["update"]}, {"tau": self._tau(r)}

    def _tau(self, r: Round) -> float:
        return _mean_work(r.system) if self.normalise == "sent" else float(normalise(r.weights) @ r.a_norm)

    def expected_coefficients(
        self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement"
    ) -> Floats | None:
        received = marginals * (1.0 - c.failure)
        if self.normalise == "sent":
            shares = expected_share(marginals, law)
            return None if shares is None else _per_work(shares * (1.0 - c.failure), c.a_norm)
        if fixed_set(received, law):
            return _per_work(c.population.weights * received, c.a_norm)
        return None  # tau and w' depend on the other received clients


def _per_work(shares: Floats, a_norm: Floats) -> Floats:
    return np.divide(shares, a_norm, out=np.zeros(len(shares)), where=a_norm > 0)


def _mean_work(c: SystemInfo | None) -> float:
    """The tau of FedACS eq. (116): the mean local work |a_i|_1 of all clients, weighted by w_i (1 - q_i).

    w_i: importance weights; q_i: failure probabilities. Raises BadValue if a |a_i|_1 or q_i is unknown.
    """
    if c is None or np.isnan(c.failure).any() or np.isnan(c.a_norm).any():
        raise BadValue("normalise", got="sent", need="received unless every q_i and K_i is known")
    return float(normalise(c.population.weights * (1.0 - c.failure)) @ c.a_norm)
