"""Gradient diversity and its bounds in the FedAWARE paper (Zeng, Xu, Pan, Wang & Tang 2024, [4]).

f = sum_i lambda_i f_i is the objective and f~ = sum_i lambda~_i f_i the surrogate objective; both weights have sum 1.

FedAWARE's convergence (Lemma 4.1, Theorem 4.1) is in `raylfl.theory.fedaware_rate`.
"""

import numpy as np

from raylfl.core.arrays import Floats


def diversity(gradients: Floats, weights: Floats, surrogate: Floats | None = None) -> float:
    """Gradient diversity sqrt(sum_i lambda_i |grad f_i|^2) / |sum_i lambda_i grad f_i| (FedAWARE, Def. 3.1, eq. 3).

    gradients: grad f_i [N, d]; weights: lambda [N]; surrogate: lambda~ [N], which replaces lambda in the denominator;
    the result is then the surrogate diversity (Def. 3.2, eq. 6). The result is inf if the denominator is 0.
    """
    mean = (weights if surrogate is None else surrogate) @ gradients
    squares = float(weights @ np.square(gradients).sum(axis=1))
    norm = float(np.linalg.norm(mean))
    return float(np.sqrt(squares)) / norm if norm > 0 else float("inf")


def global_variance(gradients: Floats, weights: Floats) -> float:
    """The variance sigma_g^2 = sum_i lambda_i |grad f_i - grad f|^2 of the gradients at x (FedAWARE, Assumption 3.1).

    gradients: grad f_i [N, d]; weights: lambda [N], sum 1; grad f = sum_i lambda_i grad f_i.
    """
    return float(weights @ np.square(gradients - weights @ gradients).sum(axis=1))


def diversity_bound(sigma_g: float, gradient: float) -> float:
    """The bound sqrt(1 + sigma_g^2 / |grad f|^2) on the gradient diversity D(x) (FedAWARE, Corollary 3.1).

    sigma_g^2: a bound on the variance of the clients' gradients (`global_variance`); with the variance at x itself, the
    bound equals D(x). gradient: |grad f(x)|; if it is 0, the bound is inf.
    """
    return float(np.sqrt(1 + sigma_g**2 / gradient**2)) if gradient > 0 else float("inf")


def ratio_divergence(surrogate: Floats, weights: Floats) -> tuple[float, float]:
    """The sums of squared and of plain ratios lambda~_i / lambda_i (FedAWARE, Theorems 4.1 and 4.2: chi^2 and chi).

    surrogate: lambda~ [N]; weights: lambda [N]. The paper's chi is not the root of its chi^2.
    """
    ratio = surrogate / weights
    return float(np.square(ratio).sum()), float(ratio.sum())


def surrogate_gradient_bound(gradient: float, sigma_g: float, surrogate: Floats, weights: Floats) -> float:
    """The bound 2 (1 + c) |grad f|^2 + 2 c sigma_g^2 on |grad f~|^2 (FedAWARE, Theorem 4.2).

    f~ = sum_i lambda~_i f_i, and c = sum_i (lambda~_i / lambda_i - 1)^2 = N + chi^2 - 2 chi, with chi^2 and chi of
    `ratio_divergence`. gradient: |grad f|; sigma_g: of `global_variance`; surrogate: lambda~ [N]; weights: lambda [N].
    """
    chi2, chi = ratio_divergence(surrogate, weights)
    c = len(weights) + chi2 - 2 * chi
    return 2 * (1 + c) * gradient**2 + 2 * c * sigma_g**2


def drift_bound(eta: float, K: int, sigma_l: float, sigma_g: float, gradient: float) -> float:
    """The bound 5 eta^2 K (sigma_l^2 + 6 K sigma_g^2 + 6 K |grad f|^2) on the drift (FedAWARE, Lemma 3.2, eq. 4).

    The drift is sum_i lambda_i E|x_i - x|^2, with x_i client i's model during its K local steps from x. eta: local step
    size, at most 1/(8 L K); sigma_l: standard deviation of a stochastic gradient; sigma_g: of `global_variance`;
    gradient: |grad f(x)|.

    This is Lemma 3 of Reddi et al. 2021. Eq. 4 has eta for eta^2 K and requires eta <= 1/K, a number without units.
    """
    return 5 * eta**2 * K * (sigma_l**2 + 6 * K * sigma_g**2 + 6 * K * gradient**2)


def unbalanced_drift_bound(eta: float, steps: Floats, weights: Floats, sigma_l: float, squares: Floats) -> float:
    """The bound on the client drift for unequal numbers of local steps K_i (FedAWARE, Corollary 3.2, eq. 5).

    5 eta^2 sum_i lambda_i K_i (sigma_l^2 + 6 K_i |grad f_i|^2), the bound of `drift_bound` client by client. Eq. 5 has
    the units of eq. 4, and its last term, Phi_Hetero, has no weights lambda_i.

    steps: K_i [N]; weights: lambda [N]; squares: |grad f_i(x)|^2 [N]. Drift and other arguments: as in `drift_bound`,
    with the largest K_i for K.
    """
    return float(5 * eta**2 * (weights * steps) @ (sigma_l**2 + 6 * steps * squares))
