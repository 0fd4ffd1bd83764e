"""The surrogate objective sum_i Omega_i f_i that a method minimises, and its distance from F = sum_i w_i f_i.

f_i is the objective of client i, and w_i its importance weight. FedACS [3], sec. 4 and App. B: the expected server step
is along -sum_i Omega_i grad f_i with Omega_i proportional to E[c_i 1{i in R}] |a_i|_1, eqs. (5)-(7). c_i is the factor
of client i's update in the server step, and R the set of received clients. |a_i|_1 is the norm of the accumulation
vector (`raylfl.core.local_rule.a_vector`), for plain SGD the number of local steps.

Thm. 2 bounds the limit of |grad F|^2 by chi2(w||Omega) kappa^2, where kappa^2 bounds the heterogeneity of the
gradients. As the local step size eta -> 0, the limit of the method tends to x_Omega = argmin sum_i Omega_i f_i. Eq. (4)
is the case f_i = |x - E_i|^2 / 2 with client i's minimiser E_i, where x_Omega = sum_i Omega_i E_i. At eta > 0, client
drift in K local steps moves the limit by O(eta K).
"""

import numpy as np

from raylfl.core.arrays import Floats


def surrogate_weights(coefficients: Floats, a_norm: Floats) -> Floats:
    """Surrogate weights Omega_i, proportional to coefficients_i |a_i|_1 (FedACS, eq. (6)): [N], sum 1.

    If all coefficients_i |a_i|_1 are 0, all weights are 0. coefficients: the expected aggregation coefficients [N] from
    `Algorithm.expected_coefficients`. a_norm: |a_i|_1, the norms of the accumulation vectors [N]; a client with
    coefficient 0 may have nan.
    """
    omega = np.where(coefficients > 0, coefficients * a_norm, 0.0)
    total = float(omega.sum())
    return omega / total if total > 0 else omega


def chi2(weights: Floats, omega: Floats) -> float:
    """The divergence chi2(w||Omega) = sum_i (w_i - Omega_i)^2 / Omega_i; inf if Omega_i = 0 < w_i for any client.

    weights: w [N]; omega: Omega [N].

    >>> chi2(np.array([0.5, 0.5]), np.array([0.5, 0.5])), chi2(np.array([0.5, 0.5]), np.array([0.8, 0.2]))
    (0.0, 0.5625)
    """
    counted = omega > 0
    if (weights[~counted] > 0).any():
        return float("inf")
    return float(((weights[counted] - omega[counted]) ** 2 / omega[counted]).sum())
