"""Objective inconsistency of FedAvg and related methods: the theorems of FedACS (Weng, Ren, Xiao & Skoglund 2025, [3]).

Weights      w [N]: of the true objective F = sum_i w_i f_i; Omega [N]: surrogate weights, of the objective
             F~ = sum_i Omega_i f_i that a method minimises instead (eq. 6); x~: the minimiser of F~
Divergence   chi2 = sum_i (w_i - Omega_i)^2 / Omega_i
System       p_i, q_i: probabilities that client i is drawn and that its upload is lost
Local work   a_norm [N]: |a_i|_1, for plain SGD the number of local steps of client i; A = max_i |a_i|_1
Constants    L: smoothness of every f_i; beta, kappa: of Assumption 3, sum_i Omega_i |grad f_i|^2 <= beta^2 |grad F~|^2
             + kappa^2; sigma: standard deviation of a stochastic gradient; eta: local step size

The surrogate weights are computed by `raylfl.diagnostics.surrogate`.
"""

import numpy as np
from scipy.optimize import brentq

from raylfl.core.arrays import Floats, Ints
from raylfl.theory.quadratic import QuadraticProblem
from raylfl.theory.statements import StepBound, over


def gradient_bound(chi2: float, kappa: float, sigma: float = 0.0) -> float:
    """The bound chi2 kappa^2 + sigma^2 on the limit of E|grad F|^2 as the step size eta -> 0 (FedACS, Theorem 2).

    Eq. 11 without and eq. 12 with gradient noise. At a finite eta the limit can be larger, see `limit`.
    """
    return chi2 * kappa**2 + sigma**2


def descent_error(u: Floats | float) -> Floats:
    """The function c(u) = (1 + 2u) u^2 / (1 - 2u^2) + u of FedACS, eq. 73e; inf for u >= 1/sqrt 2; u = eta L A."""
    left = np.maximum(1 - 2 * np.square(u), 0)
    first: Floats = np.divide((1 + 2 * u) * np.square(u), left, out=np.full(np.shape(u), np.inf), where=left > 0)
    return first + u


def surrogate_step(L: float, A: float, beta: float, theorem: str = "[3] Thm 1") -> StepBound:
    """The bound beta^2 c(eta L A) <= 1/4 on the local step size eta of FedACS, Theorem 1, with c of `descent_error`.

    Theorem 1 requires a "sufficiently small" eta; its proof (App. F.2) requires c <= 1/4. From eq. 73d to 73e the proof
    replaces -1/2 by -beta^2/2, which is valid for beta = 1 only. If -1/2 is kept, the proof requires beta^2 c <= 1/4.
    """
    u = float(brentq(lambda u: beta**2 * float(descent_error(u)) - 0.25, 0.0, 0.5))
    return StepBound(theorem, "non-convex", over(u, L * A), "beta^2 c(eta L A) <= 1/4, c(u) = (1+2u)u^2/(1-2u^2)+u")


def surrogate_bound(
    eta: float, shares: Floats, a_norm: Floats, *, L: float, gap: float, kappa: float, sigma: float
) -> float:
    """The bound on the mean of E|grad F~|^2 over R rounds (FedACS, Theorems 1 and 3), for eta within `surrogate_step`.

    (4 gap + sum_r m_r e_r) / (R min_r m_r), with m_r = eta sum_i s_i |a_i|_1 and e_r = 4 c(eta L A) kappa^2 + 2 eta L
    A^2 sigma^2 sum_i s_i / sum_i s_i |a_i|_1 in round r, A = max_i |a_i|_1, and c of `descent_error`.

    F~: the surrogate objective, the same in every round; in Theorem 3 it is F. shares: s_i of every round [R, N], the
    expected coefficient of client i's update in the server step, for a rule whose coefficients have a sum of at most 1;
    in the paper s_i = p_i (1 - q_i), with probabilities p_i of a draw and q_i of a lost upload. a_norm: |a_i|_1 of
    every round [R, N]. gap: F~(x_0) - min F~. kappa: of Assumption 3 for the surrogate weights. sigma: standard
    deviation of a stochastic gradient.

    If all rounds are equal this is Theorem 1 (eq. 10). Its second term is taken from eq. 73e: eq. 10 prints m
    kappa^2 / beta^2, which has another unit, and runs with large L exceed the bound with it. For Theorem 3 the paper
    averages eq. 107 over rounds, but that sum does not telescope if the m_r differ. The sum weighted by m_r does.
    """
    A, moved = a_norm.max(axis=1), (shares * a_norm).sum(axis=1)
    noise = 2 * eta * L * A**2 * sigma**2 * shares.sum(axis=1) / moved
    steps, errors = eta * moved, 4 * descent_error(eta * L * A) * kappa**2 + noise
    return float((4 * gap + steps @ errors) / (len(steps) * steps.min()))


def true_gradient_bound(surrogate_gradient: float, chi2: float, beta: float, kappa: float) -> float:
    """The bound (beta sqrt(chi2) + 1) |grad F~(x)| + kappa sqrt(chi2) on |grad F(x)| (FedACS, Lemma 2, eq. 9)."""
    return float((beta * np.sqrt(chi2) + 1) * surrogate_gradient + kappa * np.sqrt(chi2))


def distance_bound(gradient: float, L: float) -> float:
    """The lower bound |grad F(x~)| / L on |x~ - x*| (FedACS, Corollary 2.1)."""
    return gradient / L


def consistency(q: Floats, a_norm: Floats) -> float:
    """The deviation of a system from the condition under which FedAvg is unbiased (FedACS, Corollary 2.2).

    The condition is that (1 - q_i) |a_i|_1 is the same for all clients. The result is the largest relative deviation of
    this product from its mean over the clients. q: probabilities of a lost upload [N]; a_norm: local work |a_i|_1 [N].

    >>> consistency(np.array([0.0, 0.5]), np.array([4.0, 8.0]))
    0.0
    """
    work = (1 - q) * a_norm
    return float(np.abs(work / work.mean() - 1).max())


def local_map(problem: QuadraticProblem, steps: Ints, eta: float, prox: float = 0.0) -> Floats:
    """The matrices K_i [N, d, d]: T_i local steps from x change client i's model by K_i (b_i - H_i x) (FedACS, eq. 33).

    K_i = eta sum_{t < T_i} (I - eta (H_i + prox I))^t. If H_i + prox I is invertible, K_i is the paper's
    (I - (I - eta prox I - eta H_i)^{T_i}) (H_i + prox I)^-1.

    steps: T_i [N]; eta: local step size; prox: the factor mu of FedProx; H_i, b_i: as in `QuadraticProblem`.
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
    """The expected round of FedAvg on quadratics, as (M, v) in E[x_{r+1}] = (I - M) E[x_r] + v (FedACS, eqs. 33-35).

    M = sum_i s_i K_i H_i [d, d] and v = sum_i s_i K_i b_i [d], with K_i from `local_map`. shares: s_i [N], the expected
    coefficient E[c_i 1{i in R}] of client i's update in the server step; R: the received clients. steps: the number of
    local steps of each client [N]; eta: local step size; prox: the factor mu of FedProx.
    """
    maps = local_map(problem, steps, eta, prox)
    matrix = np.einsum("i,ijk,ikl->jl", shares, maps, problem.hessians)
    return matrix, np.einsum("i,ijk,ik->j", shares, maps, problem.linear)


def limit(problem: QuadraticProblem, shares: Floats, steps: Ints, eta: float, prox: float = 0.0) -> Floats:
    """The limit M^-1 v [d] of FedAvg's E[x_r] on quadratics at a finite step size eta (FedACS, eq. 39).

    M, v and the arguments are as in `mean_step`; a common factor of all shares does not change the limit. Eq. 36
    prints the inverse of I - M, but the fixed point of eq. 35 has the inverse of M.
    """
    matrix, vector = mean_step(problem, shares, steps, eta, prox)
    return np.asarray(np.linalg.solve(matrix, vector), dtype=np.float64)
