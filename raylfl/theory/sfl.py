"""Sequential and parallel federated learning (SFL, PFL): Li & Lyu, NeurIPS 2023 ([2]), Theorems 1 and 2.

L: smoothness of every F_m; mu: strong convexity; sigma: standard deviation of a stochastic gradient;
zeta_star^2 = (1/M) sum_m |grad F_m(x*)|^2 (Assumption 3b); beta, zeta of Assumption 3a;
M: clients; S: clients sampled per round without replacement; K: local steps; R: rounds.
The effective step size is S K eta for SFL and K eta for PFL. D = |x_0 - x*|; A = F(x_0) - F*.
The bounds of convex problems are on F(xbar) - F*, xbar the weighted mean of x_0, ..., x_R (`average_weights`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np

from raylfl.core.population import Floats
from raylfl.theory.bounds import StepBound, over


@dataclass(frozen=True)
class Setting:
    """The quantities of a run in the theorems; sequential: SFL, else PFL."""

    sequential: bool
    M: int
    S: int
    K: int
    eta: float

    @property
    def effective(self) -> float:
        """The effective step size: S K eta (SFL) or K eta (PFL)."""
        return self.K * self.eta * (self.S if self.sequential else 1)

    @property
    def partial(self) -> float:
        """The factor (M-S)/(S(M-1)) of partial participation; 0 if every client is sampled."""
        return (self.M - self.S) / (self.S * (self.M - 1)) if self.M > 1 else 0.0


@dataclass(frozen=True)
class Bound:
    """The terms whose sum is a bound: optimisation, gradient noise, partial participation, and client drift.

    drift_noise, drift_heterogeneity: the parts of the drift that come from gradient noise and from heterogeneity.
    """

    optimisation: float
    noise: float
    partial: float
    drift_noise: float
    drift_heterogeneity: float

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return self.optimisation + self.noise + self.partial + self.drift_noise + self.drift_heterogeneity


def _theorem(setting: Setting) -> str:
    return "[2] Thm 1" if setting.sequential else "[2] Thm 2"


def convex_step(setting: Setting, L: float, case: str = "convex") -> StepBound:
    """The step sizes of Theorems 1 and 2 for convex problems: an effective step size of at most 1/(6L)."""
    steps = setting.K * (setting.S if setting.sequential else 1)
    return StepBound(_theorem(setting), case, over(1, 6 * L * steps), "1/(6LSK)" if setting.sequential else "1/(6LK)")


def nonconvex_step(setting: Setting, L: float, beta: float) -> StepBound:
    """The step sizes without convexity: an effective step size of at most 1/(6L(beta+1))."""
    steps = setting.K * (setting.S if setting.sequential else 1)
    text = "1/(6LSK(beta+1))" if setting.sequential else "1/(6LK(beta+1))"
    return StepBound(_theorem(setting), "non-convex", over(1, 6 * L * steps * (beta + 1)), text)


def _convex_errors(setting: Setting, L: float, sigma: float, zeta_star: float) -> tuple[float, float, float, float]:
    e, s, k = setting.effective, setting.S, setting.K
    noise = 12 * e * sigma**2 / (s * k)
    partial = 12 * e * setting.partial * zeta_star**2
    if setting.sequential:
        return noise, partial, 18 * L * e**2 * sigma**2 / (s * k), 18 * L * e**2 * zeta_star**2 / s
    return noise, partial, 18 * L * e**2 * sigma**2 / k, 12 * L * e**2 * zeta_star**2


def strongly_convex_bound(
    setting: Setting, R: int, *, L: float, mu: float, D: float, sigma: float, zeta_star: float
) -> Bound:
    """The bound on E[F(xbar) - F*] after R rounds, strongly convex: eqs. (4), (42) for SFL, (56), (71) for PFL."""
    optimisation = 4.5 * mu * D**2 * exp(-mu * setting.effective * R / 2)
    return Bound(optimisation, *_convex_errors(setting, L, sigma, zeta_star))


def convex_bound(setting: Setting, R: int, *, L: float, D: float, sigma: float, zeta_star: float) -> Bound:
    """The bound on E[F(xbar) - F*] after R rounds, convex: eqs. (5), (46) for SFL, (57), (73) for PFL."""
    return Bound(over(3 * D**2, setting.effective * R), *_convex_errors(setting, L, sigma, zeta_star))


def nonconvex_bound(setting: Setting, R: int, *, L: float, A: float, sigma: float, zeta: float) -> Bound:
    """The bound on min_r E|grad F(x_r)|^2 after R rounds: eqs. (6), (54) for SFL, (58), (80) for PFL.

    For S < M the paper proves it with eqs. (48), (52), which have no term of partial participation.
    """
    e, s, k = setting.effective, setting.S, setting.K
    if setting.sequential:
        drift = 27 * L**2 * e**2 * sigma**2 / (8 * s * k), 27 * L**2 * e**2 * zeta**2 / (8 * s)
    else:
        drift = 27 * L**2 * e**2 * sigma**2 / (8 * k), 9 / 4 * L**2 * e**2 * zeta**2
    return Bound(over(3 * A, e * R), 3 * L * e * sigma**2 / (s * k), 0.0, *drift)


def average_weights(setting: Setting, R: int, mu: float) -> Floats:
    """The weights of x_0, ..., x_R in xbar, [R+1], sum 1 (Theorem 1); uniform for mu = 0.

    The weight of x_r is proportional to (1 - mu e / 2)^-(r+1), e the effective step size.
    """
    logs = -np.arange(1, R + 2) * np.log1p(-mu * setting.effective / 2)
    w: Floats = np.exp(logs - logs.max())
    return w / float(w.sum())


def rounds_to(
    setting: Setting, target: float, *, L: float, mu: float, D: float, sigma: float, zeta_star: float
) -> float:
    """The rounds until the strongly convex bound is below `target`; inf if its error terms never are."""
    errors = sum(_convex_errors(setting, L, sigma, zeta_star))
    if errors >= target:
        return float("inf")
    return max(0.0, 2 / (mu * setting.effective) * float(np.log(4.5 * mu * D**2 / (target - errors))))


def tuned_rate(
    method: str, R: int, *, M: int, S: int, K: int, L: float, mu: float, D: float, sigma: float, zeta_star: float
) -> float:
    """The rate of Table 1 and eqs. (10), (11): strongly convex, best step size, without constants and logarithms.

    method: `sfl`, `pfl`, or `minibatch` (SGD with a mini-batch of all S K gradients).
    """
    optimisation = mu * D**2 * exp(-mu * R / L)
    noise = sigma**2 / (mu * S * K * R)
    partial = zeta_star**2 / (mu * R) * (M - S) / (S * (M - 1)) if M > 1 else 0.0
    share = {"sfl": S, "pfl": 1}
    if method == "minibatch":
        return noise + partial + optimisation
    drift = L * sigma**2 / (mu**2 * share[method] * K * R**2) + L * zeta_star**2 / (mu**2 * share[method] * R**2)
    return noise + partial + drift + optimisation


def cyclic_rate(method: str, R: int, *, M: int, K: int, L: float, mu: float, sigma: float, zeta: float) -> float:
    """The rate of cyclic participation that App. B derives from Cho et al. 2023, Theorem 2, if all clients take part.

    Constants, logarithms and the optimisation term are left out. method: `sfl` (M groups of one client) or `pfl` (one
    group of all). SFL's rate is never the smaller one, unlike in `tuned_rate`.
    """
    both = L**2 * zeta**2 / (mu**3 * M**2 * R**2)
    if method == "pfl":
        return L * sigma**2 / (mu**2 * M * K * R) + both
    return L * sigma**2 / (mu**2 * K * R) + L**2 * zeta**2 / (mu**3 * R**2) + both


def random_reshuffling_rate(R: int, *, M: int, L: float, mu: float, D: float, zeta_star: float) -> float:
    """The rate of SGD with random reshuffling on E|x_R - x*|^2, without constants (Mishchenko et al. 2020, Cor. 1).

    SFL with K = 1 and sigma = 0 is this method; SFL's bound lacks the factor M in the exponent (sec. 3.2).
    """
    return L * zeta_star**2 / (mu**3 * M * R**2) + D**2 * exp(-mu * M * R / L)


def drift_bound(setting: Setting, *, L: float, sigma: float, zeta_star: float, gap: float) -> float:
    """The bound on the client drift of a round (Lemmas 6 and 12), for eta of `convex_step`; gap: F(x_r) - F*.

    SFL: E_r = sum_m sum_{k < K} E|x_{m,k} - x_r|^2 (eq. 33); PFL: the mean over the S clients (eq. 68). x_r: the
    model at the beginning of the round.
    """
    S, K, eta = setting.S, setting.K, setting.eta
    if setting.sequential:
        noise, spread = 9 / 4 * S**2 * K**2 * sigma**2, 9 / 4 * S**2 * K**3 * zeta_star**2
        return eta**2 * (noise + spread + 3 * L * S**3 * K**3 * gap)
    return eta**2 * (9 / 4 * K**2 * sigma**2 + 3 / 2 * K**3 * zeta_star**2 + 3 * L * K**3 * gap)
