"""FedAWARE's convergence (Zeng, Xu, Pan, Wang & Tang 2024, [4]): Lemma 4.1 and Theorem 4.1, corrected.

A server step is x <- x - eta d. Its direction d = sum_i lambda~_i m_i is the min-norm point of the convex hull of the
clients' momenta m_i (eq. 8). The weights lambda~ also define the surrogate objective f~ = sum_i lambda~_i f_i.

lambda [N]: weights of f = sum_i lambda_i f_i. g_i: client i's update after K_i local steps with step size eta_l. beta =
(1 - alpha) p, with the weight alpha of the old momentum and the probability p that a client takes part.

Why not as printed: m_i approximates eta_l K_i grad f_i, but the lemma has grad f_i in its place. Corollary B.1 assumes
|grad f| <= |grad f~| for the lambda~ that minimises |grad f~|, which is true only if both norms are equal. Theorem 4.1
says that grad f -> 0, but FedAWARE ends at a Pareto-stationary point, with d = 0 and in general grad f != 0.

What holds instead: <m_i, d> >= |d|^2 for every i by eq. 8, so that a step decreases each f_i. With h_i = eta_l K_i grad
f_i(x), K_h = 1 / sum_i (lambda_i/K_i), v_i = K_h lambda_i/K_i, K~ = sum_i lambda_i K_i and the momentum error E =
sum_i v_i |m_i - h_i|^2 (E_t: in round t; E[.] and E|.|^2 are expectations):

    f(x - eta d) <= f(x) - eta/(4 eta_l K_h) |d|^2 + eta/(2 eta_l K_h) E                for eta <= 1/(2 L eta_l K_h)
    E[E_t]       <= (1 - beta/2) E_{t-1} + 2/beta (eta eta_l L)^2 K_h K~ |d_{t-1}|^2 + beta R
    (1/T) sum_t E|d_t|^2 <= 8 eta_l K_h (f(x_0) - f*)/(eta T) + 8 R/(beta T) + 8 R      for eta of `direction_step`

The second line is Lemma 4.1, the third Theorem 4.1. L: smoothness of every f_i; R: a bound on sum_i v_i E|g_i - h_i|^2
(`local_error`). All clients are received in round 0, where m_i = g_i (the paper's remark to Lemma B.1).
"""

from math import sqrt

import numpy as np

from raylfl.core.arrays import Floats
from raylfl.theory.statements import StepBound, over


def harmonic(weights: Floats, steps: Floats) -> float:
    """The weighted harmonic mean K_h = 1 / sum_i (lambda_i / K_i) of local steps K_i [N]; weights: lambda [N]."""
    return 1 / float((weights / steps).sum())


def direction_step(L: float, weights: Floats, steps: Floats, eta: float, beta: float) -> StepBound:
    """FedAWARE's Theorem 4.1, corrected: the bound min{1/(8 L max K_i), beta/(4 L eta sqrt(K_h K~))} on eta_l.

    eta: server learning rate; weights: lambda [N]; steps: K_i [N]; the other symbols are those of the module.
    """
    lead = harmonic(weights, steps) * float(weights @ steps)
    largest = min(over(1, 8 * L * float(steps.max())), over(beta, 4 * L * eta * sqrt(lead)))
    return StepBound("[4] Thm 4.1, corrected", "non-convex", largest, "min{1/(8LK), beta/(4L eta sqrt(K_h K~))}")


def local_error(eta_l: float, steps: Floats, weights: Floats, *, L: float, sigma: float, G: Floats | float) -> float:
    """The bound R on the error sum_i v_i E|g_i - eta_l K_i grad f_i(x)|^2 of the clients' updates g_i.

    R = sum_i v_i (10 eta_l^4 L^2 K_i^2 (K_i - 1) (sigma^2 + 6 K_i G_i^2) + 2 eta_l^2 K_i sigma^2), with weights v_i
    proportional to lambda_i / K_i, for eta_l <= 1/(8 L K_i). The first term is the drift in K_i - 1 steps
    (FedAWARE, Lemma A.1), the second the gradient noise of K_i steps.

    steps: K_i [N]; weights: lambda [N]; sigma: standard deviation of a stochastic gradient; G: bounds G_i on
    |grad f_i(x)| [N], or one for all clients.
    """
    drift = 10 * eta_l**4 * L**2 * steps**2 * (steps - 1) * (sigma**2 + 6 * steps * np.square(G))
    shares = harmonic(weights, steps) * weights / steps
    return float(shares @ (drift + 2 * eta_l**2 * steps * sigma**2))


def momentum_error(
    before: float, step: float, *, beta: float, L: float, eta_l: float, steps: Floats, weights: Floats, local: float
) -> float:
    """FedAWARE's Lemma 4.1, corrected: the bound on the expected momentum error of a round.

    The error is E_t = sum_i v_i |m_i - eta_l K_i grad f_i(x_t)|^2, with momenta m_i and weights v_i proportional to
    lambda_i / K_i. before: E_{t-1}; step: |x_t - x_{t-1}|; local: `local_error`; the other arguments as in
    `direction_step`.
    """
    lead = harmonic(weights, steps) * float(weights @ steps)
    return (1 - beta / 2) * before + 2 / beta * (eta_l * L * step) ** 2 * lead + beta * local


def direction_bound(
    eta_l: float, eta: float, T: float, *, steps: Floats, weights: Floats, beta: float, gap: float, local: float
) -> float:
    """FedAWARE's Theorem 4.1, corrected: the bound on the mean of E|d_t|^2 over T rounds.

    8 eta_l K_h gap / (eta T) + 8 local / (beta T) + 8 local. d_t: the direction of the server step, the min-norm point
    of the clients' momenta; gap: f(x_0) - min f; local: `local_error`; the other arguments as in `direction_step`.
    """
    return 8 * eta_l * harmonic(weights, steps) * gap / (eta * T) + 8 * local / (beta * T) + 8 * local
