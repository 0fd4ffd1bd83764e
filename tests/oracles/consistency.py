"""Objective inconsistency ([3]): the p of FedACS, the surrogate weights, chi2, fixed points, calibration."""

import numpy as np

from tests.oracles.problem import Array


def fedacs_probabilities(w: Array, q: Array, a: Array) -> Array:
    """p_i = (w_i/((1-q_i)|a_i|_1)) / sum_j (...) ([3] eq. 15; eq. 106 means (1-q)|a|). a: |a_i|_1 [N]."""
    share = w / ((1 - q) * a)
    return share / share.sum()


def surrogate_weights(p: Array, q: Array, a: Array) -> Array:
    """Omega_i proportional to p_i (1-q_i) |a_i|_1 ([3] eq. 6). a: |a_i|_1 [N]."""
    share = p * (1 - q) * a
    return share / share.sum()


def chi2(w: Array, omega: Array) -> float:
    """chi2(w || Omega) = sum_i (w_i - Omega_i)^2 / Omega_i ([3] Thm 2)."""
    return float(np.sum((w - omega) ** 2 / omega))


def biased_fixed_point(centres: Array, q: Array, a: Array) -> Array:
    """sum_i Omega_i E_i [d]: the limit of FedAvg on f_i = |x - E_i|^2/2 as eta -> 0 ([3] eq. 4).

    Eq. 4 prints no sum over the E_i; it is meant. centres: E [N, d]; a: |a_i|_1 [N], K_i for SGD; p_i = 1/N.
    """
    return surrogate_weights(np.full(len(q), 1 / len(q)), q, a) @ centres


def calibrated_lr(name: str, eta: float, w: Array, q: Array, a: Array) -> float:
    """The eta that gives `name` the effective step of FedAvg with eta ([3] App. I.2), over all N."""
    t = np.sum(w * (1 - q) * a)
    match name:
        case "fedacs":
            return float(eta * t * np.sum(w / ((1 - q) * a)))
        case "cafedavg" | "fedvarp":
            return float(eta * t / np.sum(w * a))
        case "fedavg" | "fedau" | "optimal_sampling" | "fednova":
            return eta
    raise ValueError(f"{name} is not in the comparison of [3] App. I.2")
