"""Optimal client sampling: clients sampled in proportion to their update norms, which minimises the variance.

Chen, Horvath & Richtarik, TMLR 2022; as compared in FedACS [3] eqs. (20), (25). Symbols as in `raylfl.algorithms`.

State    server x [d]; with `norms: stale` also norms [N], float64: the norm |U_i| of the last received update of each
         client, 0 before the first; clients none.
Sent     d floats down (x), d floats up (U_i) for each sampled client; with `norms: fresh` x down to every available
         client and one norm up from every available client, as all of them train.
Assumes  perfect links and equal K_i; otherwise the method minimises sum_i Omega_i f_i instead of F = sum_i w_i f_i,
         Omega_i ~ w_i (1-q_i) |a_i|_1 with failure probabilities q_i and |a_i|_1 = K_i for plain SGD.

    sampling p_i ~ w_i |U_i| over the available clients; M draws with replacement, s_i of them of i
             fresh: U_i of this round.  stale: the last U_i received; p = w until one is received
    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   x <- x - gamma (1/M) sum_{i in R} s_i w_i U_i / p_i

stale: the mean of the known norms replaces an unknown norm. It also replaces a norm of 0, since a client with p_i = 0
would never be drawn again.
fresh: a client that is dropped (runtime.on_client_error, on_nonfinite) sends no norm and counts as not available in
that round; if none is left, the round is empty.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import Aggregating
from raylfl.core.algorithm import Info, ServerState, State, normalised_over
from raylfl.core.arrays import Floats
from raylfl.core.chunked_matrix import norms
from raylfl.core.population import Population, Round, SystemInfo


@ALGORITHMS.register("optimal_sampling", paper="Chen et al. 2022")
@dataclass
class OptimalSampling(Aggregating):
    """Optimal sampling: clients are drawn in proportion to their weighted update norms, which reduces the variance."""

    aggregate = "anonymous_importance"

    gamma: float = 1.0  # server lr
    # fresh: all available clients train first (the paper); stale: the last known norms
    norms: Literal["fresh", "stale"] = "fresh"
    calibrate: bool = False  # no effect: FedACS app. I.2 leaves this method's eta unchanged

    @property
    def samples_by_norm(self) -> bool:
        return self.norms == "fresh"

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        server: ServerState = {"x": x.clone()}
        if self.norms == "stale":
            server["norms"] = torch.zeros(population.count, dtype=torch.float64)
        return server

    def probabilities(self, server: ServerState, c: SystemInfo) -> Floats | None:
        if self.norms == "fresh":
            return None
        norms = server["norms"].cpu().numpy()
        received = norms > 0
        mean = norms[received].mean() if received.any() else 1.0
        return self.norm_probabilities(server, c, np.where(received, norms, mean))

    def norm_probabilities(self, server: ServerState, c: SystemInfo, norms: Floats) -> Floats:
        p = normalised_over(c.population.weights * norms, c.available)
        return p if p.any() else normalised_over(c.population.weights, c.available)  # all norms are 0: p = w

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        step = self.rule.sum(uploads["update"], r)
        new = {**server, "x": server["x"] - self.gamma * step}
        if self.norms == "stale":
            new["norms"] = server["norms"].clone()
            new["norms"][torch.from_numpy(r.cohort)] = norms(uploads["update"], torch.float64).to(new["norms"].device)
        return new, {}
