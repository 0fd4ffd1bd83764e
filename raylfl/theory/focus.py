"""Theorems on FOCUS, SG-FOCUS and FedAvg under arbitrary participation (Ying, Li & Yang, NeurIPS 2025, [1]).

SG-FOCUS is FOCUS with stochastic gradients. L: smoothness of every f_i; mu: strong convexity of every f_i; beta: PL
constant of F = (1/N) sum_i f_i; N: clients; tau: local steps per round, or a bound on them; q_min, in formulas q: the
smallest probability with which a client takes part in a round; sigma: standard deviation of a stochastic gradient; eta:
step size of clients and server; kappa = L/mu.

Theorems 1 and 4 to 6 are not used as printed, because runs exceed some of them ("Limits of the theorems" in
docs/theory.md). They are replaced by the following statement, with u = eta N, s = eta L (tau-1) <= q/8 and g0^2 =
(1/N) sum_i |grad f_i(x_0)|^2. Cohorts of different rounds are independent of each other and of the gradient noise.

    mu-strongly convex   u <= q mu/(16 L^2):  E|x_R - x*|^2 <= (1 - u mu/2)^R (|x_0 - x*|^2 + a) + floor
    beta-PL              u <= q/(12 L):       E F(x_R) - F* <= (1 - u beta/4)^R (F(x_0) - F* + b) + floor
    non-convex           u <= q/(12 L):       mean over r < R of E|grad F(x_r)|^2 <= 8 (F(x_0) - F* + b)/(u R) + floor

a = g0^2 (12 u (1-q)/(mu q) + 13 eta^2 (tau-1)^2) and b = g0^2 (3 u (1-q)/q + 7 L eta^2 (tau-1)^2) come from the first
rounds: Alg. 1 starts from the stored gradients 0. The floors are in `noise_floor` and its siblings.

Proof. Client i has the stored gradient h_i = grad f_i(z_i) + n_i. Before it first takes part, z_i = x_0 and n_i = -grad
f_i(x_0); afterwards n_i is gradient noise. z_i', n_i': after the round; B = sum_i E|x - z_i|^2, with B = 0 at first.

    move    x' = x - eta Y with Y = N grad F(x) + e + m + b', e = sum_i (grad f_i(z_i') - grad f_i(x)), and m and b' the
            sums of n_i' over clients that have and have not taken part. E|m|^2 <= N sigma^2: noises are uncorrelated.
            E|b'|^2 <= (1-q)^(r+1) N^2 g0^2.
    drift   c_i = |x - z_i|, w_i = z_i' - x for a client in the cohort: |w_i| <= (e^s - 1) c_i + eta e^s sum_t (|n_it| +
            |n_i|) over tau-1 local gradients, as each is off by at most L (|x_it - x| + c_i) + |n_it| + |n_i|. So
            E|e|^2 <= N L^2 (B + the noise of the w_i).
    errors  x' - z_i' is x - z_i - eta Y for absent clients, and -w_i - eta Y for the others. Young's inequality gives
            B' <= (1 - q/2 + 4 (e^s - 1)^2) B + (2/q) eta^2 N E|Y|^2 + the noise of the w_i, and E|Y|^2 <= 4 (N^2 E|grad
            F|^2 + E|e|^2 + E|m|^2 + E|b'|^2).
    bias    n_i of an absent client has mean 0 given z_i, so that E<x - x*, n_i> = E<x - z_i, n_i> and E<grad F(x), n_i>
            = E<grad F(x) - grad F(z_i), n_i>: at most half of q B/8N per round, and (1-q)/q times the noise.

Add these to the descent of |x - x*|^2 or F(x): E|x - x*|^2 + B/N falls by the factor 1 - u mu/2, F - F* + (L/2N) B by
u |grad F|^2/8, up to noise. Under the conditions on u and s the terms in B sum to at most 0.43 q and 0.47 q, and q/2 is
there. (Lemma 4 as printed lacks a factor N; with weights 1 in place of 1/N for B, eta would have to fall as 1/N^2.)
"""

from raylfl.core.arrays import Floats
from raylfl.theory.statements import StepBound, Terms, over


def strongly_convex_step(L: float, mu: float, N: int, tau: int, q_min: float, theorem: str = "[1] Thm 1") -> StepBound:
    """The bound q min{mu/(16 N L^2), 1/(8 L (tau-1))} on the step size of FOCUS and SG-FOCUS, strongly convex.

    It replaces the limits of Theorems 1 and 4 (see the module, also for the symbols). theorem: the name in the result.
    """
    largest = q_min * min(over(mu, 16 * N * L**2), over(1, 8 * L * (tau - 1)))
    return StepBound(theorem, "strongly convex", largest, "q min{mu/(16NL^2), 1/(8L(tau-1))}")


def smooth_step(L: float, N: int, tau: int, q_min: float, case: str, theorem: str = "[1] Thm 1") -> StepBound:
    """The bound q min{1/(12 N L), 1/(8 L (tau-1))} on the step size of FOCUS and SG-FOCUS without convexity.

    It replaces the limits of Theorems 1, 5 and 6 (see the module). case: `PL` or `non-convex`, the name in the result.
    """
    largest = q_min * min(over(1, 12 * N * L), over(1, 8 * L * (tau - 1)))
    return StepBound(theorem, case, largest, "q min{1/(12NL), 1/(8L(tau-1))}")


def contraction(eta: float, mu: float, N: int) -> float:
    """The factor 1 - eta mu N / 2 per round on E|x - x*|^2 + (1/N) sum_i E|x - z_i|^2, strongly convex (eqs. 23, 26).

    z_i: the model at which client i computed its last gradient.
    """
    return 1 - eta * mu * N / 2


def pl_contraction(eta: float, beta: float, N: int) -> float:
    """The factor 1 - eta beta N / 4 per round on E F(x) - F* + (L/2N) sum_i E|x - z_i|^2, PL (eqs. 24, 27).

    Printed is 1 - eta beta N. z_i: as in `contraction`.
    """
    return 1 - eta * beta * N / 4


def start_distance(eta: float, mu: float, N: int, tau: int, q_min: float, g0: float) -> float:
    """What the first rounds add to |x_0 - x*|^2: g0^2 (12 eta N (1-q)/(mu q) + 13 eta^2 (tau-1)^2)."""
    return g0**2 * (12 * eta * N * (1 - q_min) / (mu * q_min) + 13 * eta**2 * (tau - 1) ** 2)


def start_gap(eta: float, L: float, N: int, tau: int, q_min: float, g0: float) -> float:
    """What the first rounds add to F(x_0) - F*: g0^2 (3 eta N (1-q)/q + 7 L eta^2 (tau-1)^2)."""
    return g0**2 * (3 * eta * N * (1 - q_min) / q_min + 7 * L * eta**2 * (tau - 1) ** 2)


def nonconvex_bound(eta: float, N: int, rounds: Floats | float, gap: float) -> Floats | float:
    """The bound 8 gap / (eta N R) on the mean of E|grad F(x_r)|^2 over r < R = rounds (Theorem 1, eq. 25).

    gap: F(x_0) - F* plus `start_gap`. With stochastic gradients `nonconvex_noise_floor` is added.
    """
    return 8 * gap / (eta * N * rounds)


def noise_floor(eta: float, mu: float, N: int, tau: int, q_min: float, sigma: float) -> float:
    """SG-FOCUS's floor of E|x - x*|^2 (Theorem 4, eq. 26).

    2 eta sigma^2/(mu N) (8 N^2 (1-q)/q + 12 N/q + 23 (tau-1)^2). Printed is 4 (q + N^2) eta sigma^2/(mu N q), where the
    proof has 4 N^2 for N^2.
    """
    q = q_min
    return 2 * eta * sigma**2 / (mu * N) * (8 * N**2 * (1 - q) / q + 12 * N / q + 23 * (tau - 1) ** 2)


def pl_noise_floor(eta: float, L: float, beta: float, N: int, tau: int, q_min: float, sigma: float) -> float:
    """SG-FOCUS's floor of E F(x) - F* under the PL condition (Theorem 5, eq. 27).

    4 L eta sigma^2/(beta N) (4 N^2 (1-q)/q + 6 N/q + 12 (tau-1)^2). Printed is (L/2 + 32 (tau-1)^2 L^2 + 8/q)
    eta/beta sigma^2.
    """
    return nonconvex_noise_floor(eta, L, N, tau, q_min, sigma) / (2 * beta)


def nonconvex_noise_floor(eta: float, L: float, N: int, tau: int, q_min: float, sigma: float) -> float:
    """SG-FOCUS's floor of the mean of E|grad F|^2 (Theorem 6, eq. 28).

    8 L eta sigma^2/N (4 N^2 (1-q)/q + 6 N/q + 12 (tau-1)^2). Printed is (2LN + 8 N^2/((N - 8L^2) q)) eta^2 sigma^2.
    """
    q = q_min
    return 8 * L * eta * sigma**2 / N * (4 * N**2 * (1 - q) / q + 6 * N / q + 12 * (tau - 1) ** 2)


def fedavg_step(L: float, tau: int) -> StepBound:
    """The bound min{1/(3L), 1/(4(tau-1)L)} on FedAvg's step size, strongly convex (FOCUS, Theorem 3)."""
    largest = min(1 / (3 * L), over(1, 4 * (tau - 1) * L))
    return StepBound("[1] Thm 3", "strongly convex", largest, "min{1/(3L), 1/(4(tau-1)L)}")


def fedavg_limit(eta: float, L: float, mu: float, tau: int, sigma_g: float, delta_q: float) -> Terms:
    """The bound on the limit of FedAvg's E|x - x*|^2 for full gradients, in three terms (FOCUS, Theorem 3).

    client drift = 80 eta^2 kappa^2 (tau-1)^2 (delta_q^2 + sigma_G^2); biased sampling = 10 delta_q^2 / mu^2;
    heterogeneity = 16 eta tau^2 / mu (delta_q^2 + sigma_G^2); kappa = L/mu. These are eqs. 62 and 63 over eta mu/2;
    printed are kappa^2 L^2 in the first and kappa delta_q^2 in the second term, which have other units.

    The server averages the models of the received clients. tau: local steps; sigma_g: bound of |grad f_i - grad F|
    (Assumption 5); delta_q: bound of |sum_i (q_i - 1/N) grad f_i| with client i's expected share q_i in the average
    (eq. 37). Corollary 1 is the case delta_q = 0, Corollary 2 also has tau = 1, and Corollary 3 also sigma_g = 0.

    >>> fedavg_limit(0.01, 1.0, 0.5, 5, sigma_g=0.0, delta_q=0.0).total
    0.0
    """
    kappa, both = L / mu, delta_q**2 + sigma_g**2
    drift, heterogeneity = 80 * eta**2 * kappa**2 * (tau - 1) ** 2 * both, 16 * eta * tau**2 / mu * both
    return Terms({"client drift": drift, "biased sampling": 10 * delta_q**2 / mu**2, "heterogeneity": heterogeneity})


def consensus_bound(eta: float, tau: int, sigma_g: float, delta_q: float) -> tuple[float, float]:
    """Bounds on FedAvg's consensus error sum_i q_i |x_i - xbar|^2 before and after a local step (FOCUS, Lemma 2).

    8 eta^2 (tau-1)^2 (delta_q^2 + sigma_G^2) before the step (eq. 54) and 8 eta^2 tau^2 (delta_q^2 + sigma_G^2) after
    it (eq. 55), for eta <= 1/(4(tau-1)L). xbar = sum_i q_i x_i, with client i's expected share q_i in the average; tau,
    sigma_g, delta_q: as in `fedavg_limit`.
    """
    both = 8 * eta**2 * (delta_q**2 + sigma_g**2)
    return both * (tau - 1) ** 2, both * tau**2


def focus_consensus_bound(before: float, gradient: float, eta: float, N: int, q_min: float) -> float:
    """The bound on FOCUS's consensus error in the next round, for eta within `smooth_step` (Lemma 4, eq. 97).

    (1 - q/3) before + 5 eta^2 N^3/q |grad F(x_{r+1})|^2 bounds E sum_i |x_{r+1} - z_i|^2, with the server model x_{r+1}
    and the model z_i at which client i computed its last gradient. Printed is 16 eta^2 N^2/(3q): the norm in eq. 100
    counts one of N equal rows. before: the error one round earlier; gradient: |grad F(x_{r+1})|; q = q_min, the
    smallest participation probability.
    """
    return (1 - q_min / 3) * before + 5 * eta**2 * N**3 / q_min * gradient**2
