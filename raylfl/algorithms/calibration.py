"""Step-length calibration: local learning rates with which all compared methods move equally far in a round.

FedACS [3] App. I.2. FedAvg with an unbiased aggregation rule and p = w moves by eta_1 T along the mean gradient, with
T = sum_i w_i (1-q_i) |a_i|_1 (eq. (111)). The local learning rates of the other methods are

    fedacs                                        eta_1 T sum w / ((1-q) |a|_1)   (112)
    cafedavg, fedvarp                             eta_1 T / sum w |a|_1           (113), (115)
    fednova (sent), fedau, optimal_sampling       eta_1                           (116)

eta_1: the local learning rate of FedAvg; w: importance weights; p: sampling probabilities; q_i: failure probability of
client i's link in this round; |a_i|_1: its local work in this round, K_i for plain SGD. Both w and p are normalised
over the available clients. Clients with q_i = 1 (never received) or |a_i|_1 = 0 (no local step) are left out of all
sums, which does not change T. The result of (112) is then divided by the sum of w over the clients that remain.
"""

import numpy as np

from raylfl.core.algorithm import normalised_over
from raylfl.core.arrays import Floats
from raylfl.core.population import SystemInfo
from raylfl.errors import BadValue


def received_probability(c: SystemInfo) -> Floats:
    """Probabilities [N] that the upload of client i is received: 1 - q_i, or 0 if the client is not available.

    q_i: failure probability. Raises BadValue if the q_i of an available client is unknown.
    """
    if np.isnan(c.failure[c.available]).any():
        raise BadValue("calibrate", got=True, need="false where failure probabilities are not known")
    return np.where(c.available, 1.0 - c.failure, 0.0)


def fedacs_lr(c: SystemInfo) -> float:
    """The local learning rate of FedACS, eq. (112), from FedAvg's c.lr; c.lr itself if no upload can be received."""
    w, rate = normalised_over(c.population.weights, c.available), received_probability(c) * c.a_norm
    live = w * rate > 0
    if not live.any():
        return c.lr
    return float(c.lr * (w * rate).sum() * (w[live] / rate[live]).sum() / w[live].sum())


def memory_lr(c: SystemInfo) -> float:
    """The local learning rate of c-a-FedAvg and FedVARP, eqs. (113), (115) of FedACS, from FedAvg's c.lr.

    It is c.lr itself if no client can be received.
    """
    w, rate = normalised_over(c.population.weights, c.available), received_probability(c) * c.a_norm
    live = w * rate > 0
    return float(c.lr * (w * rate).sum() / (w * c.a_norm)[live].sum()) if live.any() else c.lr
