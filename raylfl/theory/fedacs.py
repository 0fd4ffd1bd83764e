"""Objective inconsistency of FedAvg and related methods: Weng, Ren, Xiao & Skoglund 2025 ([3]).

Omega [N]: surrogate weights (eq. 6; `raylfl.diagnostics.surrogate`); w [N]: weights of the true objective;
q [N]: loss probabilities; a_norm [N]: |a_i|_1, the local work of client i, its number of local steps for plain SGD;
chi2 = sum_i (w_i - Omega_i)^2 / Omega_i; F~ = sum_i Omega_i f_i; x~: its minimiser; L: smoothness of every f_i;
beta, kappa: constants of Assumption 3 for the weights Omega; sigma: standard deviation of a stochastic gradient;
eta: local step size; A = max_i |a_i|_1.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from raylfl.core.population import Floats, Ints
from raylfl.theory.bounds import StepBound, over
from raylfl.theory.quadratic import QuadraticProblem


def gradient_bound(chi2: float, kappa: float) -> float:
    """The bound chi2 kappa^2 on the limit of |grad F|^2 (Theorem 2, eq. 11), without gradient noise.

    kappa: the constant of Assumption 3 for the surrogate weights, sum_i Omega_i |grad f_i|^2 <= beta^2 |grad F~|^2 +
    kappa^2.
    """
    return chi2 * kappa**2


def descent_error(u: Floats | float) -> Floats:
    """The function c(u) = (1 + 2u) u^2 / (1 - 2u^2) + u of eq. 73e; inf from u = 1/sqrt 2 on.

    u = eta L A.
    """
    left = np.maximum(1 - 2 * np.square(u), 0)
    first: Floats = np.divide((1 + 2 * u) * np.square(u), left, out=np.full(np.shape(u), np.inf), where=left > 0)
    return first + u


def surrogate_step(L: float, A: float, beta: float, theorem: str = "[3] Thm 1") -> StepBound:
    """The step sizes of Theorem 1: beta^2 c(eta L A) <= 1/4 with c of `descent_error`.

    The theorem says "sufficiently small", and App. F.2 asks for c <= 1/4. Its step from eq. 73d to 73e turns -1/2 into
    -beta^2/2, which is a bound for beta = 1 only; with -1/2 kept, the factor beta^2 >= 1 remains.
    """
    u = float(brentq(lambda u: beta**2 * float(descent_error(u)) - 0.25, 0.0, 0.5))
    return StepBound(theorem, "non-convex", over(u, L * A), "beta^2 c(eta L A) <= 1/4, c(u) = (1+2u)u^2/(1-2u^2)+u")


def surrogate_bound(
    eta: float, shares: Floats, a_norm: Floats, R: int, *, L: float, gap: float, kappa: float, sigma: float
) -> float:
    """The bound on the mean of E|grad F~|^2 over R rounds (Theorem 1, eq. 10), for eta of `surrogate_step`.

    4 (F~(x_0) - F~*) / (eta_eff tau_eff R) + 4 c(eta L A) kappa^2 + 2 eta L A^2 sigma^2 / tau_eff

    shares: s_i = p_i (1 - q_i) [N] of K draws with replacement, or E[c_i 1{i in R}] of another rule with
    sum_R c_i <= 1, as the proof needs no more; eta_eff = eta sum_i s_i; tau_eff = sum_i s_i |a_i|_1 / sum_i s_i;
    gap: F~(x_0) - F~*; kappa: of Assumption 3 for the surrogate weights. The second term is what eq. 73e
    leaves; eq. 10 prints eta_eff tau_eff kappa^2 / beta^2, which has another unit and is exceeded by runs with large L.
    """
    return consistent_bound(
        eta, np.tile(shares, (R, 1)), np.tile(a_norm, (R, 1)), L=L, gap=gap, kappa=kappa, sigma=sigma
    )


def consistent_bound(
    eta: float, shares: Floats, a_norm: Floats, *, L: float, gap: float, kappa: float, sigma: float
) -> float:
    """The bound on the mean of E|grad F|^2 over the rounds of FedACS in a system that changes (Theorem 3).

    shares, a_norm: of each round [R, N], such that the surrogate weights equal the weights in F; otherwise as in
    `surrogate_bound`, with s_r = eta_eff tau_eff and e_r the other terms of round r: (4 gap + sum_r s_r e_r) /
    (R min_r s_r). The paper averages eq. 107 over rounds, which does not telescope where s_r differ; weighted by s_r it
    does.
    """
    A, moved = a_norm.max(axis=1), (shares * a_norm).sum(axis=1)
    noise = 2 * eta * L * A**2 * sigma**2 * shares.sum(axis=1) / moved
    steps, errors = eta * moved, 4 * descent_error(eta * L * A) * kappa**2 + noise
    return float((4 * gap + steps @ errors) / (len(steps) * steps.min()))


def true_gradient_bound(surrogate_gradient: float, chi2: float, beta: float, kappa: float) -> float:
    """The bound (beta sqrt(chi2) + 1) |grad F~(x)| + kappa sqrt(chi2) on |grad F(x)| (Lemma 2, eq. 9)."""
    return float((beta * np.sqrt(chi2) + 1) * surrogate_gradient + kappa * np.sqrt(chi2))


def distance_bound(gradient: float, L: float) -> float:
    """The lower bound |grad F(x~)| / L on the distance of the surrogate's minimiser x~ from x* (Corollary 2.1)."""
    return gradient / L


def consistency(q: Floats, a_norm: Floats) -> float:
    """The deviation of a system from the condition |a_i|_1 = (1-q_1)/(1-q_i) |a_1|_1 of Corollary 2.2.

    It is the largest relative deviation of (1-q_i)|a_i|_1 from its mean over clients. At 0 FedAvg is unbiased although
    clients differ.

    >>> consistency(np.array([0.0, 0.5]), np.array([4.0, 8.0]))
    0.0
    """
    work = (1 - q) * a_norm
    return float(np.abs(work / work.mean() - 1).max())


def local_map(problem: QuadraticProblem, steps: Ints, eta: float, prox: float = 0.0) -> Floats:
    """The matrices K_i [N, d, d]: T_i local steps from x move client i by K_i (b_i - H_i x) (App. C, eq. 33).

    steps: T_i [N]; prox: the factor mu of FedProx; H_i, b_i: as in `QuadraticProblem`.
    K_i = eta sum_{t < T_i} (I - eta (H_i + prox I))^t, which for invertible H_i + prox I is the paper's
    (I - (I - eta prox I - eta H_i)^{T_i}) (H_i + prox I)^-1.
    """
    eye = np.eye(problem.dim)
    maps = np.zeros_like(problem.hessians)
    for i, count in enumerate(steps):
        shrink, power = eye - eta * (problem.hessians[i] + prox * eye), eye
        for _ in range(int(count)):
            maps[i] += eta * power
            power = power @ shrink
    return maps


def mean_step(
    problem: QuadraticProblem, shares: Floats, steps: Ints, eta: float, prox: float = 0.0
) -> tuple[Floats, Floats]:
    """The mean round of FedAvg on quadratics: (M, v) with E[x_{r+1}] = (I - M) E[x_r] + v (App. C, eqs. 33-35).

    M = sum_i s_i K_i H_i [d, d], v = sum_i s_i K_i b_i [d]. shares: s_i = E[c_i 1{i in R}] [N], the expected
    coefficient of client i's update: p_i (1 - q_i) times the server's scale; steps: T_i [N]; prox: the factor mu of
    FedProx; K_i: of `local_map`.
    """
    maps = local_map(problem, steps, eta, prox)
    matrix = np.einsum("i,ijk,ikl->jl", shares, maps, problem.hessians)
    return matrix, np.einsum("i,ijk,ik->j", shares, maps, problem.linear)


def limit(problem: QuadraticProblem, shares: Floats, steps: Ints, eta: float, prox: float = 0.0) -> Floats:
    """The limit M^-1 v of E[x_r] at a finite step size on quadratics, [d] (App. C, eq. 39).

    Arguments: as of `mean_step`; a common factor of the shares cancels. Eq. 36 prints the inverse of I - M;
    the fixed point of eq. 35 has the inverse of M.
    """
    matrix, vector = mean_step(problem, shares, steps, eta, prox)
    return np.asarray(np.linalg.solve(matrix, vector), dtype=np.float64)


def contraction(problem: QuadraticProblem, shares: Floats, steps: Ints, eta: float, prox: float = 0.0) -> float:
    """The contraction factor of E[x_r] towards `limit` per round: the spectral radius of I - M.

    Arguments: as of `mean_step`.
    """
    matrix, _ = mean_step(problem, shares, steps, eta, prox)
    return float(np.abs(np.linalg.eigvals(np.eye(problem.dim) - matrix)).max())
