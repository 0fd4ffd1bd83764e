"""Gradient diversity: Zeng, Xu, Pan, Wang & Tang 2024 ([4]).

gradients: grad f_i(x) of all clients, [N, d]; weights: lambda [N], sum 1; surrogate: lambda~ [N], sum 1.
gradient: |grad f(x)|, f = sum_i lambda_i f_i; sigma_g: of Assumption 3.1; sigma_l: standard deviation of a stochastic
gradient; eta: local step size; K: local steps; x_i: client i's model during its local steps from x.
FedAWARE's convergence (Lemma 4.1, Theorem 4.1) is in `raylfl.theory.fedaware_rate`.
"""

from __future__ import annotations

import numpy as np

from raylfl.core.population import Floats


def diversity(gradients: Floats, weights: Floats, surrogate: Floats | None = None) -> float:
    """Gradient diversity D(x) = sqrt(sum_i lambda_i |grad f_i|^2 / |sum_i lambda_i grad f_i|^2) (Def. 3.1, eq. 3).

    surrogate: weights lambda~ of the denominator, which gives the surrogate diversity D~ (Def. 3.2, eq. 6). inf if the
    denominator is 0.
    """
    mean = (weights if surrogate is None else surrogate) @ gradients
    squares = float(weights @ np.square(gradients).sum(axis=1))
    norm = float(np.linalg.norm(mean))
    return float(np.sqrt(squares)) / norm if norm > 0 else float("inf")


def global_variance(gradients: Floats, weights: Floats) -> float:
    """The variance sigma_g^2 = sum_i lambda_i |grad f_i - grad f|^2 of the gradients at x (Assumption 3.1)."""
    return float(weights @ np.square(gradients - weights @ gradients).sum(axis=1))


def diversity_bound(sigma_g: float, gradient: float) -> float:
    """The bound sqrt(1 + sigma_g^2 / |grad f|^2) on D(x) (Corollary 3.1); equality for sigma_g taken at x."""
    return float(np.sqrt(1 + sigma_g**2 / gradient**2)) if gradient > 0 else float("inf")


def ratio_divergence(surrogate: Floats, weights: Floats) -> tuple[float, float]:
    """(chi^2, chi) = (sum_i (lambda~_i/lambda_i)^2, sum_i lambda~_i/lambda_i) of Theorems 4.1 and 4.2."""
    ratio = surrogate / weights
    return float(np.square(ratio).sum()), float(ratio.sum())


def surrogate_gradient_bound(gradient: float, sigma_g: float, surrogate: Floats, weights: Floats) -> float:
    """The bound 2 (1 + c) |grad f|^2 + 2 c sigma_g^2 on |grad f~|^2, c = N + chi^2 - 2 chi (Theorem 4.2).

    c = sum_i (lambda~_i/lambda_i - 1)^2.
    """
    chi2, chi = ratio_divergence(surrogate, weights)
    c = len(weights) + chi2 - 2 * chi
    return 2 * (1 + c) * gradient**2 + 2 * c * sigma_g**2


def drift_bound(eta: float, K: int, sigma_l: float, sigma_g: float, gradient: float) -> float:
    """The bound 5 eta (sigma_l^2 + 6 K sigma_g^2 + 6 K |grad f|^2) on sum_i lambda_i E|x_i - x|^2 (Lemma 3.2, eq. 4).

    It needs eta <= 1/K as printed, and eta <= 1/(8 L K) as in Reddi et al. 2021, whose lemma it follows.
    """
    return 5 * eta * (sigma_l**2 + 6 * K * sigma_g**2 + 6 * K * gradient**2)


def unbalanced_drift_bound(
    eta: float, steps: Floats, weights: Floats, sigma_l: float, sigma_g: float, dissimilarity: Floats, gradient: float
) -> float:
    """The bound of Corollary 3.2 (eq. 5) on the drift for unequal numbers of local steps K_i (`steps`).

    5 eta (sigma_l^2 + 6 K_min^2 sigma_g^2 + 6 K~ |grad f|^2) + 30 eta sum_i (K_i - K_min) zeta_i with
    K~ = sum_i lambda_i K_i and K_min = min_i K_i. The last term is Phi_Hetero.
    dissimilarity: zeta_i = |grad f_i - grad f|^2 [N]; the paper's sum over clients has no weights.
    """
    least = float(steps.min())
    hetero = 30 * eta * float((steps - least) @ dissimilarity)
    mean = float(weights @ steps)
    return 5 * eta * (sigma_l**2 + 6 * least**2 * sigma_g**2 + 6 * mean * gradient**2) + hetero
