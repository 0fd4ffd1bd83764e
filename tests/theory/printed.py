"""FedAWARE's Lemma 4.1 and Theorem 4.1 as printed, which runs exceed (`raylfl.theory.fedaware_rate` says why)."""

from math import sqrt

import numpy as np


def momentum_error(beta, L, drift):
    """FedAWARE's Lemma 4.1 as printed: the bound beta^2 L^2 drift on sum_i lambda_i E|m_i - grad f_i(x)|^2.

    m_i: client i's momentum; beta = (1 - alpha) p, with the weight alpha of the old momentum and the probability p that
    a client takes part; L: smoothness; drift: sum_i lambda_i E|x_{i,K_i} - x|^2 of the models after the local steps.
    """
    return beta**2 * L**2 * drift


def progress(surrogate, weights, *, beta, L, K, G, diversity):
    """The factor rho of a round in FedAWARE's Theorem 4.1 (eq. 26), which needs rho > 0.

    rho = 1 - sqrt c - c - 6 K beta L G chi / D, with c = sum_i (lambda~_i/lambda_i - 1)^2 and chi^2 = sum_i
    (lambda~_i/lambda_i)^2.

    surrogate: lambda~ [N]; weights: lambda [N]; beta = (1 - alpha) p, as in `momentum_error`; L: smoothness;
    K: the weighted mean of the numbers of local steps; G: the largest sqrt(sum_i lambda_i |grad f_i|^2) of the run;
    diversity: the surrogate gradient diversity D.
    """
    ratio = surrogate / weights
    chi2, c = np.square(ratio).sum(), np.square(ratio - 1).sum()
    return 1 - sqrt(c) - c - 6 * K * beta * L * G * sqrt(chi2) / diversity


def gradient(progress, chi2, diversity, drift, decrease, *, eta, beta, L, G, hybrid):
    """FedAWARE's Theorem 4.1 as printed: the bound on min_t |grad f(x_t)|^2 (eq. 9, with eps_opt of eq. 26).

    Arrays have one entry per round t [T]. progress: `progress`; chi2: sum_i (lambda~_i/lambda_i)^2; diversity: the
    surrogate gradient diversity; drift: sum_i lambda_i |x_{i,K_i} - x|^2; decrease: f(x_t) - f(x_{t+1}); hybrid:
    sigma^2 + Phi_Hetero of Corollary 3.2 (eq. 5).

    eta: the server's learning rate; beta, L, G: as in `progress`.
    """
    optimisation = decrease / eta + eta * chi2 * beta**2 * L**3 * drift
    heterogeneity = beta * L * G * np.sqrt(chi2) / diversity * np.sqrt(hybrid)
    return float(((optimisation + heterogeneity) / progress).mean())
