"""Theorems on sequential (SFL) and parallel (PFL, FedAvg) federated learning (Li & Lyu, NeurIPS 2023, [2]).

M: clients; S: clients sampled per round without replacement; K: local steps; R: rounds; eta: local step size. F_m: the
objective of client m; F: their mean; x*: its minimiser; D = |x_0 - x*|; A = F(x_0) - F*. L: smoothness of every F_m;
mu: strong convexity; sigma: standard deviation of a stochastic gradient; beta, zeta: of Assumption 3a; zeta_star^2 =
(1/M) sum_m |grad F_m(x*)|^2 (Assumption 3b).

The effective step size is S K eta for SFL and K eta for PFL. For convex problems the theorems bound F(xbar) - F*, where
xbar is the weighted mean of x_0, ..., x_R (`average_weights`).
"""

from dataclasses import dataclass
from math import cbrt, exp, sqrt

import numpy as np

from raylfl.core.arrays import Floats
from raylfl.theory.statements import StepBound, Terms, over


@dataclass(frozen=True)
class Setting:
    """The quantities of a run that appear in the SFL paper's theorems.

    sequential: whether the method is SFL; otherwise it is PFL, parallel federated learning as in FedAvg. M: clients.
    S: clients sampled per round. K: local steps. eta: local step size.
    """

    sequential: bool
    M: int
    S: int
    K: int
    eta: float

    @property
    def effective(self) -> float:
        """The effective step size: S K eta for SFL, K eta for PFL (parallel: FedAvg)."""
        return self.K * self.eta * (self.S if self.sequential else 1)

    @property
    def partial(self) -> float:
        """The factor (M-S)/(S(M-1)) of partial participation in the bounds; 0 if every client is sampled or M = 1."""
        return (self.M - self.S) / (self.S * (self.M - 1)) if self.M > 1 else 0.0

    @property
    def theorem(self) -> str:
        """The theorem about the method: Theorem 1 for SFL, Theorem 2 for PFL."""
        return "[2] Thm 1" if self.sequential else "[2] Thm 2"


def convex_step(setting: Setting, L: float, case: str = "convex") -> StepBound:
    """The bound 1/(6L) on the effective step size for convex problems (SFL, Theorems 1 and 2), as one on eta."""
    steps = setting.K * (setting.S if setting.sequential else 1)
    return StepBound(setting.theorem, case, over(1, 6 * L * steps), "1/(6LSK)" if setting.sequential else "1/(6LK)")


def nonconvex_step(setting: Setting, L: float, beta: float) -> StepBound:
    """The bound on the local step size eta without convexity (SFL, Theorems 1 and 2).

    The effective step size is at most 1/(6L(beta+1)), and at most 1/(18 L beta^2 P) with P = `Setting.partial`, which
    the paper leaves out (`nonconvex_bound`).
    """
    steps = setting.K * (setting.S if setting.sequential else 1)
    largest = min(over(1, 6 * L * (beta + 1)), over(1, 18 * L * beta**2 * setting.partial)) / steps
    unit = "SK" if setting.sequential else "K"
    text = f"1/(6L{unit}(beta+1))" if setting.partial == 0 else f"min{{1/(6L(beta+1)), 1/(18L beta^2 P)}}/({unit})"
    return StepBound(setting.theorem, "non-convex", largest, text)


def _terms(optimisation: float, noise: float, partial: float, drift: tuple[float, float]) -> Terms:
    """The terms of a bound; drift: the terms of client drift that come from gradient noise and from heterogeneity."""
    names = ("optimisation", "noise", "partial", "drift noise", "drift heterogeneity")
    return Terms(zip(names, (optimisation, noise, partial, *drift), strict=True))


def _convex_terms(optimisation: float, setting: Setting, L: float, sigma: float, zeta_star: float) -> Terms:
    e, s, k = setting.effective, setting.S, setting.K
    if setting.sequential:
        drift = 18 * L * e**2 * sigma**2 / (s * k), 18 * L * e**2 * zeta_star**2 / s
    else:
        drift = 18 * L * e**2 * sigma**2 / k, 12 * L * e**2 * zeta_star**2
    return _terms(optimisation, 12 * e * sigma**2 / (s * k), 12 * e * setting.partial * zeta_star**2, drift)


def strongly_convex_bound(
    setting: Setting, R: int, *, L: float, mu: float, D: float, sigma: float, zeta_star: float
) -> Terms:
    """The bound on E[F(xbar) - F*] after R rounds for strongly convex functions (SFL, Theorems 1 and 2).

    Eqs. (4), (42) for SFL; eqs. (56), (71) for PFL (parallel: FedAvg). xbar: the mean of the iterates with
    `average_weights`.
    """
    optimisation = 4.5 * mu * D**2 * exp(-mu * setting.effective * R / 2)
    return _convex_terms(optimisation, setting, L, sigma, zeta_star)


def convex_bound(setting: Setting, R: int, *, L: float, D: float, sigma: float, zeta_star: float) -> Terms:
    """The bound on E[F(xbar) - F*] after R rounds for convex functions (SFL, Theorems 1 and 2).

    Eqs. (5), (46) for SFL; eqs. (57), (73) for PFL (parallel: FedAvg). xbar: the plain mean of the iterates.
    """
    return _convex_terms(over(3 * D**2, setting.effective * R), setting, L, sigma, zeta_star)


def nonconvex_bound(setting: Setting, R: int, *, L: float, A: float, sigma: float, zeta: float) -> Terms:
    """The bound on min_r E|grad F(x_r)|^2 after R rounds without convexity (SFL, Theorems 1 and 2).

    Eqs. (6), (58), and for S < M eqs. (54), (80) with two changes: the term 6 L e P zeta^2 is added, with the effective
    step size e and P = `Setting.partial`, and the terms of drift are 5/3 as large. L: smoothness; A = F(x_0) - F*;
    sigma: standard deviation of a stochastic gradient; zeta: of Assumption 3a.

    The paper's proof bounds |grad F_m(x_mk) - grad F(x)| by L |x_mk - x| (eq. 50), as if F_m were F. For S = M the sum
    over all clients makes up for it. For S < M let b be the mean of the local gradients, E[.] given x. Then
    -E<grad F, b> = (-|grad F|^2 - |E b|^2 + |grad F - E b|^2)/2, where the last term is drift alone, and E|b|^2 =
    |E b|^2 + Var b, where Var b <= E|b - grad F|^2 <= 2 P (beta^2 |grad F|^2 + zeta^2) + 2 drift.
    """
    e, s, k = setting.effective, setting.S, setting.K
    more = 5 / 3 if setting.partial else 1.0
    if setting.sequential:
        drift = 27 * L**2 * e**2 * sigma**2 / (8 * s * k), 27 * L**2 * e**2 * zeta**2 / (8 * s)
    else:
        drift = 27 * L**2 * e**2 * sigma**2 / (8 * k), 9 / 4 * L**2 * e**2 * zeta**2
    partial = 6 * L * e * setting.partial * zeta**2
    drift = more * drift[0], more * drift[1]
    return _terms(over(3 * A, e * R), 3 * L * e * sigma**2 / (s * k), partial, drift)


def average_weights(setting: Setting, R: int, mu: float) -> Floats:
    """The weights of x_0, ..., x_R in the mean iterate xbar of the bounds, [R+1], sum 1 (SFL, Theorem 1).

    The weight of x_r is proportional to (1 - mu e / 2)^-(r+1), with the strong convexity mu and the effective step size
    e (`Setting.effective`). For mu = 0 all weights are equal.
    """
    logs = -np.arange(1, R + 2) * np.log1p(-mu * setting.effective / 2)
    w: Floats = np.exp(logs - logs.max())
    return w / float(w.sum())


def tuned_rate(
    method: str, R: int, *, M: int, S: int, K: int, L: float, mu: float, D: float, sigma: float, zeta: float
) -> float:
    """The rate at the best step size for strongly convex functions, without constants and logarithms (SFL, Table 1).

    Eqs. (10), (11), and eqs. (7), (43), (72) with S < M. method: `sfl` or `pfl` (parallel: FedAvg, Theorem 2), with
    zeta = zeta* of Assumption 3b; `karimireddy` (2020) for FedAvg, with zeta of Assumption 3a; `koloskova` (2020) for
    FedAvg, with zeta* and sigma = sigma*, the noise at x*; `minibatch` (Stich 2019) for SGD with the mini-batch of all
    M K gradients of a round. The last three rows are for S = M. M: clients; S: sampled clients; K: local steps; the
    other symbols as in `strongly_convex_bound`.
    """
    factor = {"minibatch": L, "koloskova": L * K}.get(method, mu)
    rate = sigma**2 / (mu * S * K * R) + factor * D**2 * exp(-mu * R / L)
    if method == "minibatch":
        return rate
    share = {"sfl": S, "pfl": 1, "karimireddy": 1, "koloskova": 1}[method]
    partial = zeta**2 / (mu * R) * Setting(True, M, S, K, 1.0).partial
    return rate + partial + L * (sigma**2 / K + zeta**2) / (mu**2 * share * R**2)


def tuned_convex_rate(
    method: str, R: int, *, M: int, S: int, K: int, L: float, D: float, sigma: float, zeta_star: float
) -> float:
    """The rate at the best step size for convex functions, without constants (SFL, Corollaries 1 and 2).

    Eqs. (8), (60), and eqs. (47), (74) with S < M. The arguments are as in `tuned_rate`; method: `sfl` or `pfl`.
    """
    share = {"sfl": S, "pfl": 1}[method]
    first = (sigma / sqrt(K) + sqrt(1 - S / M) * zeta_star) * D / sqrt(S * R)
    drift = cbrt(L * D**4 / (share * R**2)) * (cbrt(sigma**2 / K) + cbrt(zeta_star**2))
    return first + drift + L * D**2 / R


def tuned_nonconvex_rate(
    method: str, R: int, *, M: int, S: int, K: int, L: float, A: float, sigma: float, zeta: float, beta: float
) -> float:
    """The rate of min_r E|grad F(x_r)|^2 at the best step size, without constants (SFL, Corollaries 1 and 2).

    Eqs. (9), (61), and eqs. (55), (81) with S < M, to which the term of `nonconvex_bound` for S < M adds sqrt(1 - S/M)
    zeta sqrt(L A/(S R)). The last term is L (beta + 1 + beta^2 P) A/R, P = `Setting.partial`, by the limits in
    `nonconvex_step`; printed is L beta A/R, which is 0 for beta = 0. A = F(x_0) - F*; zeta, beta: of Assumption 3a;
    the other arguments as in `tuned_convex_rate`.
    """
    share = {"sfl": S, "pfl": 1}[method]
    first = (sigma / sqrt(K) + sqrt(1 - S / M) * zeta) * sqrt(L * A / (S * R))
    drift = cbrt(L**2 * A**2 / (share * R**2)) * (cbrt(sigma**2 / K) + cbrt(zeta**2))
    return first + drift + L * (beta + 1 + beta**2 * Setting(True, M, S, K, 1.0).partial) * A / R


def useful_local_steps(R: int, *, L: float, mu: float, sigma: float, zeta_star: float) -> float:
    """The number of local steps K beyond which more of them no longer improve SFL's rate (SFL, sec. 3.2).

    sigma^2/zeta*^2 mu/L R, where the first and third term of eq. (7) are equal; without constants and logarithms.
    """
    return over(sigma**2 * mu * R, zeta_star**2 * L)


def cyclic_rate(method: str, R: int, *, M: int, K: int, L: float, mu: float, sigma: float, zeta: float) -> float:
    """The rate under cyclic participation of all M clients (groups of clients take turns), as in the SFL paper, App. B.

    It follows from Cho et al. 2023, Theorem 2, without constants, logarithms and the optimisation term. method: `sfl`
    for M groups of one client, `pfl` for one group of all clients. SFL's rate is never smaller than PFL's here, but
    never larger in `tuned_rate`. The other symbols are as in `strongly_convex_bound` and `nonconvex_bound`.
    """
    both = L**2 * zeta**2 / (mu**3 * M**2 * R**2)
    if method == "pfl":
        return L * sigma**2 / (mu**2 * M * K * R) + both
    return L * sigma**2 / (mu**2 * K * R) + L**2 * zeta**2 / (mu**3 * R**2) + both


def drift_bound(setting: Setting, *, L: float, sigma: float, zeta_star: float, gap: float) -> float:
    """The bound on the client drift of round r for convex functions (SFL, Lemmas 6 and 12), for eta in `convex_step`.

    With the model x_r at the beginning of the round and client m's model x_{m,k} after k of its K steps, the drift is
    sum_m sum_{k < K} E|x_{m,k} - x_r|^2 for SFL (eq. 33). For PFL (parallel: FedAvg) it is the mean over the S clients
    instead of the sum (eq. 68). L: smoothness; sigma: standard deviation of a stochastic gradient; zeta_star:
    heterogeneity at x*; gap: F(x_r) - F*.
    """
    S, K, eta = setting.S, setting.K, setting.eta
    if setting.sequential:
        noise, spread = 9 / 4 * S**2 * K**2 * sigma**2, 9 / 4 * S**2 * K**3 * zeta_star**2
        return eta**2 * (noise + spread + 3 * L * S**3 * K**3 * gap)
    return eta**2 * (9 / 4 * K**2 * sigma**2 + 3 / 2 * K**3 * zeta_star**2 + 3 * L * K**3 * gap)


def nonconvex_drift_bound(setting: Setting, *, sigma: float, beta: float, zeta: float, gradient: float) -> float:
    """The drift of `drift_bound` without convexity (SFL, Lemmas 10 and 14), for eta in `convex_step`.

    beta, zeta: of Assumption 3a; gradient: |grad F(x_r)|.
    """
    S, K, eta = setting.S, setting.K, setting.eta
    square = beta**2 * gradient**2 + zeta**2
    if setting.sequential:
        noise, spread = 9 / 4 * S**2 * K**2 * sigma**2, 9 / 4 * S**2 * K**3 * square
        return eta**2 * (noise + spread + 3 / 2 * S**3 * K**3 * gradient**2)
    return eta**2 * (9 / 4 * K**2 * sigma**2 + 3 / 2 * K**3 * (square + gradient**2))
