"""The surrogate objective sum_i Omega_i f_i that a method minimises, and its distance from F = sum_i w_i f_i.

FedACS [3], sec. 4 and App. B: the expected server step goes along -sum_i Omega_i grad f_i with
Omega_i ~ E[c_i 1{i in R}] |a_i|_1, eqs. (5)-(7). Thm. 2 bounds the remaining error by chi2(w||Omega) kappa^2, where
kappa^2 bounds the heterogeneity of the gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from raylfl.core.population import Floats


def surrogate_weights(coefficients: Floats, a_norm: Floats) -> Floats:
    """Surrogate weights Omega_i ~ E[c_i 1{i in R}] |a_i|_1, [N], sum 1; all 0 if no client is ever received.

    coefficients: E[c_i 1{i in R}] up to a common factor [N], from `Algorithm.expected_coefficients`; a_norm: |a_i|_1
    [N], which may be nan for a client that is never sampled.
    """
    omega = np.where(coefficients > 0, coefficients * a_norm, 0.0)
    total = float(omega.sum())
    return omega / total if total > 0 else omega


def chi2(weights: Floats, omega: Floats) -> float:
    """The divergence chi2(w||Omega) = sum_i (w_i - Omega_i)^2 / Omega_i; inf if Omega_i = 0 < w_i for a client.

    >>> chi2(np.array([0.5, 0.5]), np.array([0.5, 0.5])), chi2(np.array([0.5, 0.5]), np.array([0.8, 0.2]))
    (0.0, 0.5625)
    """
    counted = omega > 0
    if (weights[~counted] > 0).any():
        return float("inf")
    return float(((weights[counted] - omega[counted]) ** 2 / omega[counted]).sum())


def fixed_point(omega: Floats, optimum: Callable[[Floats], Floats]) -> Floats:
    """The limit of a method with surrogate weights Omega as eta -> 0: argmin sum_i Omega_i f_i, [d].

    optimum: weights [N] -> argmin sum_i weights_i f_i [d], for data where a closed form is known. [3] eq. (4) is the
    case f_i = |x - E_i|^2 / 2, with limit sum_i Omega_i E_i. At eta > 0 client drift moves the limit by O(eta K).
    """
    return optimum(omega)
