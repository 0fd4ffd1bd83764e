"""Theorems on FOCUS, SG-FOCUS and FedAvg under arbitrary participation (Ying, Li & Yang, NeurIPS 2025, [1]).

SG-FOCUS is FOCUS with stochastic gradients. L: smoothness of every f_i; mu: strong convexity of every f_i; beta: PL
constant of F = (1/N) sum_i f_i; N: clients; tau: local steps per round; q_min, in formulas q: the smallest probability
with which a client takes part in a round; sigma: standard deviation of a stochastic gradient; eta: step size of clients
and server; kappa = L/mu.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from raylfl.theory.bounds import StepBound, over


def strongly_convex_step(L: float, mu: float, N: int, tau: int, q_min: float) -> StepBound:
    """The bound on FOCUS's step size in Theorem 1, strongly convex: the printed limits and two more from the proof.

    Printed are 3 mu/(27 N L^2), 1/(3L(tau-1)) and q^1.5/(8 L sqrt N), with q = q_min, the smallest participation
    probability. The proof also needs q^1.5/(8L(tau-1)) (Lemma 4) and 2q/(3N(8L^2/mu + mu/2)) (eq. 110), which is always
    smaller than the first printed limit. L: smoothness; mu: strong convexity; N: clients; tau: local steps.
    """
    largest = min(
        over(3 * mu, 27 * N * L**2),
        over(1, 3 * L * (tau - 1)),
        over(q_min**1.5, 8 * L * sqrt(N)),
        over(q_min**1.5, 8 * L * (tau - 1)),
        over(2 * q_min, 3 * N * (over(8 * L**2, mu) + mu / 2)),
    )
    text = "min{3mu/(27NL^2), 1/(3L(tau-1)), q^1.5/(8L sqrt N), q^1.5/(8L(tau-1)), 2q/(3N(8L^2/mu + mu/2))}"
    return StepBound("[1] Thm 1", "strongly convex", largest, text)


def pl_step(L: float, beta: float, N: int, tau: int, q_min: float) -> StepBound:
    """The bound on FOCUS's step size in Theorem 1 under the PL condition: the printed limits and more from the proof.

    The limits from the proof are in eqs. 113 and 118. Two of the printed limits, 3q/(32N) and q/(16L^2), do not
    have the unit of a step size; they are kept as printed. L: smoothness; beta: PL constant of F; N: clients; tau:
    local steps; q = q_min, the smallest participation probability.
    """
    largest = min(
        3 * q_min / (32 * N),
        over(q_min, 12 * beta * N),
        over(q_min, 16 * L**2),
        over(q_min**1.5, 8 * L * sqrt(N)),
        over(q_min**1.5, 8 * L * (tau - 1)),
        over(1, 4 * L * N),
        over(1, 2 * (tau - 1) * L * N),
    )
    text = "min{3q/(32N), q/(12 beta N), q/(16L^2), q^1.5/(8L sqrt N), q^1.5/(8L(tau-1)), 1/(4LN), 1/(2(tau-1)LN)}"
    return StepBound("[1] Thm 1", "PL", largest, text)


def nonconvex_step(L: float, N: int, tau: int, q_min: float) -> StepBound:
    """The bound on FOCUS's step size in Theorem 1 without convexity.

    L: smoothness; N: clients; tau: local steps; q_min: the smallest participation probability.
    """
    largest = min(
        over(1, 2 * L * (tau - 1)),
        over(q_min**1.5, 8 * L * sqrt(N)),
        over(q_min**1.5, 8 * L * (tau - 1)),
        over(q_min, 16 * L * sqrt(2 * N)),
        over(1, 4 * L * N),
    )
    text = "min{1/(2L(tau-1)), q^1.5/(8L sqrt N), q^1.5/(8L(tau-1)), q/(16L sqrt(2N)), 1/(4LN)}"
    return StepBound("[1] Thm 1", "non-convex", largest, text)


def sg_strongly_convex_step(L: float, mu: float, N: int, tau: int, q_min: float) -> StepBound:
    """The bound on SG-FOCUS's step size in Theorem 4 of the FOCUS paper, strongly convex.

    SG-FOCUS is FOCUS with stochastic gradients. L: smoothness; mu: strong convexity; N: clients; tau: local steps;
    q_min: the smallest participation probability.
    """
    largest = min(
        over(2 * q_min, 3 * N * (over(16 * L**2, mu) + mu / 2)),
        over(q_min**1.5, 4 * L * sqrt(6 * N)),
        over(q_min**1.5, 8 * sqrt(2) * L * (tau - 1)),
        over(mu, 128 * (tau - 1) ** 2 * L**2 * N),
    )
    text = "min{2q/(3N(16L^2/mu + mu/2)), q^1.5/(4L sqrt(6N)), q^1.5/(8 sqrt(2) L(tau-1)), mu/(128(tau-1)^2 L^2 N)}"
    return StepBound("[1] Thm 4", "strongly convex", largest, text)


def sg_pl_step(L: float, beta: float, N: int, tau: int, q_min: float) -> StepBound:
    """The bound on SG-FOCUS's step size in Theorem 5 of the FOCUS paper, under the PL condition.

    SG-FOCUS is FOCUS with stochastic gradients. L: smoothness; beta: PL constant of F; N: clients; tau: local steps;
    q_min: the smallest participation probability.
    """
    largest = min(
        over(q_min, 3 * beta * N * (4 - q_min)),
        over(q_min, 16 * L**2),
        over(q_min**1.5, 4 * L * sqrt(6 * N)),
        over(q_min**1.5, 8 * sqrt(2) * L * (tau - 1)),
    )
    text = "min{q/(3 beta N(4-q)), q/(16L^2), q^1.5/(4L sqrt(6N)), q^1.5/(8 sqrt(2) L(tau-1))}"
    return StepBound("[1] Thm 5", "PL", largest, text)


def sg_nonconvex_step(L: float, N: int, tau: int, q_min: float) -> StepBound:
    """The bound on SG-FOCUS's step size in Theorem 6 of the FOCUS paper, without convexity.

    SG-FOCUS is FOCUS with stochastic gradients. L: smoothness; N: clients; tau: local steps; q_min: the smallest
    participation probability.
    """
    largest = min(
        over(q_min**1.5, 4 * L * sqrt(6 * N)),
        over(q_min**1.5, 8 * sqrt(2) * L * (tau - 1)),
        over(1, 4 * L * N),
        over(1, 4 * L * (tau - 1)),
    )
    text = "min{q^1.5/(4L sqrt(6N)), q^1.5/(8 sqrt(2) L(tau-1)), 1/(4LN), 1/(4L(tau-1))}"
    return StepBound("[1] Thm 6", "non-convex", largest, text)


def contraction(eta: float, mu: float, N: int) -> float:
    """The factor 1 - eta mu N / 2 of FOCUS on |x - x*|^2 per round, strongly convex (Theorems 1 and 4).

    eta: step size; mu: strong convexity of every f_i; N: clients; x*: the minimiser.
    """
    return 1 - eta * mu * N / 2


def pl_contraction(eta: float, beta: float, N: int) -> float:
    """The factor 1 - eta beta N of FOCUS on F(x) - F* per round, under the PL condition (Theorems 1 and 5).

    eta: step size; beta: PL constant of F; N: clients; F*: the minimum of F.
    """
    return 1 - eta * beta * N


def nonconvex_bound(eta: float, N: int, rounds: int, gap: float) -> float:
    """FOCUS's bound 8 gap / (eta N R) on the mean of |grad F(x_r)|^2 over R rounds (Theorem 1, eq. 25).

    eta: step size; N: clients; rounds: R; gap: F(x_1) - F*, with the minimum F* of F.
    """
    return 8 * gap / (eta * N * rounds)


def noise_floor(eta: float, mu: float, N: int, q_min: float, sigma: float) -> float:
    """SG-FOCUS's floor 4 (q + N^2) / (mu N q) eta sigma^2 of |x - x*|^2 (FOCUS, Theorem 4, eq. 26).

    eta: step size; mu: strong convexity of every f_i; N: clients; q = q_min, the smallest participation probability;
    sigma: standard deviation of a stochastic gradient.
    """
    return 4 * (q_min + N**2) / (mu * N * q_min) * eta * sigma**2


def pl_noise_floor(eta: float, L: float, beta: float, tau: int, q_min: float, sigma: float) -> float:
    """SG-FOCUS's floor of F(x) - F* under the PL condition (FOCUS, Theorem 5, eq. 27).

    (L/2 + 32 (tau-1)^2 L^2 + 8/q) eta/beta sigma^2, with q = q_min, the smallest participation probability. eta: step
    size; L: smoothness; beta: PL constant of F; tau: local steps; sigma: standard deviation of a stochastic gradient.
    """
    return (L / 2 + 32 * (tau - 1) ** 2 * L**2 + 8 / q_min) * eta / beta * sigma**2


def nonconvex_noise_floor(eta: float, L: float, N: int, q_min: float, sigma: float) -> float:
    """SG-FOCUS's floor (2LN + 8 N^2 / ((N - 8L^2) q)) eta^2 sigma^2 of |grad F|^2 (FOCUS, Theorem 6).

    It is inf if N <= 8L^2. eta: step size; L: smoothness; N: clients; q = q_min, the smallest participation
    probability; sigma: standard deviation of a stochastic gradient.
    """
    if 8 * L**2 >= N:
        return float("inf")
    return (2 * L * N + 8 * N**2 / ((N - 8 * L**2) * q_min)) * eta**2 * sigma**2


def fedavg_step(L: float, tau: int) -> StepBound:
    """The bound min{1/(3L), 1/(4(tau-1)L)} on FedAvg's step size, strongly convex (FOCUS, Theorem 3).

    L: smoothness of every f_i; tau: local steps.
    """
    largest = min(1 / (3 * L), over(1, 4 * (tau - 1) * L))
    return StepBound("[1] Thm 3", "strongly convex", largest, "min{1/(3L), 1/(4(tau-1)L)}")


@dataclass(frozen=True)
class FedAvgLimit:
    """The three terms of the bound on the limit of FedAvg's E|x - x*|^2 (FOCUS, Theorem 3).

    client_drift = 80 eta^2 kappa^2 L^2 (tau-1)^2 (delta_q^2 + sigma_G^2); biased_sampling = 10 kappa delta_q^2;
    heterogeneity = 16 eta tau^2 / mu (delta_q^2 + sigma_G^2); kappa = L/mu. The symbols are the arguments of
    `fedavg_limit`.
    """

    client_drift: float
    biased_sampling: float
    heterogeneity: float

    @property
    def total(self) -> float:
        """The sum of the three terms."""
        return self.client_drift + self.biased_sampling + self.heterogeneity


def fedavg_limit(eta: float, L: float, mu: float, tau: int, sigma_g: float, delta_q: float) -> FedAvgLimit:
    """The bound on the limit of FedAvg's E|x - x*|^2, in three terms (FOCUS, Theorem 3).

    tau: local steps; sigma_g: bound of |grad f_i - grad F| (Assumption 5); delta_q: bound of
    |sum_i (q_i - 1/N) grad f_i| with client i's expected share q_i in the average (eq. 37). Corollary 1 is the case
    delta_q = 0, Corollary 2 also has tau = 1, and Corollary 3 also sigma_g = 0.

    >>> fedavg_limit(0.01, 1.0, 0.5, 5, sigma_g=0.0, delta_q=0.0).total
    0.0
    """
    kappa, both = L / mu, delta_q**2 + sigma_g**2
    return FedAvgLimit(
        client_drift=80 * eta**2 * kappa**2 * L**2 * (tau - 1) ** 2 * both,
        biased_sampling=10 * kappa * delta_q**2,
        heterogeneity=16 * eta * tau**2 / mu * both,
    )


def consensus_bound(eta: float, tau: int, sigma_g: float, delta_q: float) -> tuple[float, float]:
    """Bounds on FedAvg's consensus error sum_i q_i |x_i - xbar|^2 before and after a local step (FOCUS, Lemma 2).

    8 eta^2 (tau-1)^2 (delta_q^2 + sigma_G^2) before the step (eq. 54) and 8 eta^2 tau^2 (delta_q^2 + sigma_G^2) after
    it (eq. 55), for eta <= 1/(4(tau-1)L). xbar = sum_i q_i x_i, with client i's expected share q_i in the average; tau,
    sigma_g, delta_q: as in `fedavg_limit`.
    """
    both = 8 * eta**2 * (delta_q**2 + sigma_g**2)
    return both * (tau - 1) ** 2, both * tau**2


def focus_consensus_bound(before: float, gradient: float, eta: float, N: int, q_min: float) -> float:
    """The bound on FOCUS's consensus error in the next round (Lemma 4, eq. 97).

    (1 - q/3) before + 16 eta^2 N^2 / (3q) |grad F(x_{r+1})|^2 bounds E sum_i |x_{r+1} - x_i|^2, with the server model
    x_{r+1} and client i's last local model x_i. before: the error one round earlier; gradient: |grad F(x_{r+1})|; q =
    q_min, the smallest participation probability.
    """
    return (1 - q_min / 3) * before + 16 * eta**2 * N**2 / (3 * q_min) * gradient**2
