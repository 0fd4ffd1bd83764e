"""The theorems that apply to an experiment: the step sizes they admit, and their guarantees at its step size.

[1] to [4]: the papers listed in `raylfl.theory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log

import numpy as np

from raylfl.algorithms.fedacs import FedACS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.fedaware import FedAWARE
from raylfl.algorithms.focus import Focus
from raylfl.algorithms.sfl import SFL
from raylfl.core.arrays import Floats
from raylfl.parts import Experiment
from raylfl.theory import direction, focus, inconsistency, sfl
from raylfl.theory.bounds import StepBound
from raylfl.theory.constants import Constants
from raylfl.theory.facts import Facts
from raylfl.theory.quadratic import QuadraticProblem
from raylfl.theory.statements import Line, Promise, distances, size_of


def setting_of(experiment: Experiment, facts: Facts) -> sfl.Setting:
    """The run's quantities in the symbols of the SFL paper [2], whose theorems are about SFL and FedAvg."""
    sequential = isinstance(experiment.algorithm, SFL)
    return sfl.Setting(sequential, experiment.world.count, facts.cohort, facts.tau, experiment.rule.lr)


def step_bounds(experiment: Experiment, facts: Facts, constants: Constants) -> Iterator[StepBound]:
    """The largest step sizes that the theorems about the run's method admit.

    The theorems of [1] on FOCUS give a bound for each case that the problem satisfies (strongly convex, PL,
    non-convex), the strongest assumption first. Those of [2] give one bound, for the strongest assumption that holds.
    """
    algorithm, n, tau = experiment.algorithm, experiment.world.count, facts.tau
    L, mu, beta = constants.value("L"), constants.value("mu"), constants.value("mu_F")
    if isinstance(algorithm, Focus) and facts.takes_part is not None:
        q = float(facts.takes_part.min())
        noisy = constants.value("sigma") > 0
        if mu > 0:
            yield (focus.sg_strongly_convex_step if noisy else focus.strongly_convex_step)(L, mu, n, tau, q)
        if beta > 0:
            yield (focus.sg_pl_step if noisy else focus.pl_step)(L, beta, n, tau, q)
        yield (focus.sg_nonconvex_step if noisy else focus.nonconvex_step)(L, n, tau, q)
    if type(algorithm) is FedAvg or isinstance(algorithm, SFL):
        setting = setting_of(experiment, facts)
        if mu >= 0:
            yield sfl.convex_step(setting, L, "strongly convex" if mu > 0 else "convex")
        elif np.isfinite(constants.value("beta")) or np.isnan(mu):
            yield sfl.nonconvex_step(setting, L, 0.0 if np.isnan(mu) else constants.value("beta"))
    if type(algorithm) is FedAvg and mu > 0:
        yield focus.fedavg_step(L, tau)
    yield from inconsistency.step_bounds(experiment, facts, constants)
    yield from direction.step_bounds(experiment, facts, constants)


def left_out(experiment: Experiment, facts: Facts) -> Iterator[str]:
    """Messages about theorems on the run's method that do not apply to this run; each names the assumptions."""
    algorithm = experiment.algorithm
    if isinstance(algorithm, Focus) and facts.takes_part is None:
        yield "[1] needs the probability with which each client takes part, which is unknown here"
    if isinstance(algorithm, (FedAvg, FedACS)) and facts.over_rounds is None:
        yield (
            "[3] Theorems 1 and 3 need surrogate weights that are known and the same in every round, a cohort of fixed "
            "size, gamma = 1, and a rule whose weights have a sum of at most 1 (such as anonymous)"
        )
    if isinstance(algorithm, FedAWARE) and direction.momentum_factor(experiment, facts) is None:
        yield (
            "[4] Theorem 4.1 needs normalize = false, equal chances to take part, no lost uploads, local steps that do "
            "not change, and all clients in round 0 (algorithm.warmup=all)"
        )


def promises(
    experiment: Experiment,
    facts: Facts,
    constants: Constants,
    problem: QuadraticProblem | None,
    steps: Sequence[StepBound],
) -> Iterator[Promise]:
    """Rates, noise floors, bounds and limits that the theorems give for the run at its step size.

    A theorem with a bound in `steps` is left out if the run's step size exceeds it, or if L is only an estimate.
    problem: the f_i as quadratics, None if they are not. steps: the result of `step_bounds`.
    """
    algorithm, mu = experiment.algorithm, constants.value("mu")
    inside = {(s.theorem, s.case) for s in steps if s.admits(experiment.rule.lr)} if constants.exact("L") else set()
    scale = 1.0 if problem is None else size_of(problem.optimum)
    if isinstance(algorithm, Focus) and facts.takes_part is not None:
        yield from _of_focus(experiment, facts, constants, scale, inside)
    if (type(algorithm) is FedAvg or isinstance(algorithm, SFL)) and mu >= 0 and facts.even and facts.equal_steps:
        setting = setting_of(experiment, facts)
        if any(theorem == setting.theorem for theorem, _ in inside) and constants.exact("D"):
            yield from _of_sfl(setting, experiment.world.rounds, constants, scale)
    yield from inconsistency.promises(experiment, facts, constants, problem, inside)
    yield from direction.promises(experiment, facts, constants, inside)


def _of_focus(
    experiment: Experiment, facts: Facts, constants: Constants, scale: float, inside: set[tuple[str, str]]
) -> Iterator[Promise]:
    """Rate and noise floor of [1] Theorems 1 and 4 (strongly convex), and eq. 25's bound on the mean of |grad F|^2.

    scale: |x*|, the unit of relative distances. inside: (theorem, case) of each step-size bound that the run satisfies.
    """
    n, eta, mu, sigma = experiment.world.count, experiment.rule.lr, constants.value("mu"), constants.value("sigma")
    theorem = "[1] Thm 4" if sigma > 0 else "[1] Thm 1"
    assert facts.takes_part is not None
    if (theorem, "strongly convex") in inside and constants.exact("D"):
        factor, D = focus.contraction(eta, mu, n), constants.value("D")
        floor = focus.noise_floor(eta, mu, n, float(facts.takes_part.min()), sigma)

        def rate(r: Floats) -> Floats:
            return np.asarray(np.sqrt(D**2 * factor**r + floor))

        yield Promise(theorem, "factor a round on |x - x*|^2", factor, distances("rate", scale, rate))
        yield Promise(theorem, "rounds for six digits of |x - x*|^2", log(1e6) / -log(factor))
        if sigma > 0:
            yield Promise(theorem, "floor of |x - x*|^2", floor)
    if (theorem, "non-convex") in inside and sigma == 0 and constants.exact("A"):
        R, gap = experiment.world.rounds, constants.value("A")
        line = Line("global/grad_norm", "bound on the mean", lambda r: np.sqrt(8 * gap / (eta * n * r)))
        bound = focus.nonconvex_bound(eta, n, R, gap)
        yield Promise(f"{theorem}, eq. 25", f"mean of |grad F|^2 over {R} rounds, at most", bound, (line,))


def sfl_bound(setting: sfl.Setting, R: int, constants: Constants, mu: float) -> sfl.Bound | None:
    """The bound of [2] Theorems 1 and 2 on F(xbar) - F* after R rounds, for the weighted mean xbar of the iterates.

    mu: the strong convexity of the f_i; 0 gives the bound for convex functions. None if 0 < mu and R < 1/(mu e), with
    the effective step size e: the strongly convex bound is not valid yet.
    """
    L, D, sigma, zeta_star = (constants.value(name) for name in ("L", "D", "sigma", "zeta*"))
    if mu == 0:
        return sfl.convex_bound(setting, R, L=L, D=D, sigma=sigma, zeta_star=zeta_star)
    if mu * setting.effective * R < 1:
        return None
    return sfl.strongly_convex_bound(setting, R, mu=mu, L=L, D=D, sigma=sigma, zeta_star=zeta_star)


def _of_sfl(setting: sfl.Setting, R: int, constants: Constants, scale: float) -> Iterator[Promise]:
    """The bound of [2] Theorems 1 and 2 on F(xbar) - F*, its terms, and the value of the option `eval.average`.

    xbar: the weighted mean of the iterates x_0 to x_R, which a run with this value of `eval.average` measures. If
    R is too small for the strongly convex bound, the bound for convex functions is given, with equal weights. scale:
    |x*|, the unit of relative distances.
    """
    theorem, convexity = setting.theorem, constants.value("mu")
    mu = convexity if convexity * setting.effective * R >= 1 else 0.0
    bound = sfl_bound(setting, R, constants, mu)
    assert bound is not None

    def gap(r: Floats) -> Floats:
        found = [sfl_bound(setting, int(k), constants, mu) for k in r]
        return np.array([np.nan if own is None else own.total for own in found])

    lines = [Line("average/gap", "bound", gap)]
    if convexity > 0:  # F(x) - F* >= mu |x - x*|^2 / 2
        lines.append(Line("average/distance_abs", "bound", lambda r: np.sqrt(2 * gap(r) / convexity)))
        lines.append(Line("average/distance", "bound", lambda r: np.sqrt(2 * gap(r) / convexity) / scale))
    case = "strongly convex" if mu > 0 else "convex"
    yield Promise(theorem, f"F(xbar) - F* after {R} rounds, at most ({case})", bound.total, tuple(lines))
    for name, value in vars(bound).items():
        yield Promise(theorem, f"  of which {name.replace('_', ' ')}", value)
    yield Promise(theorem, "eval.average, for this xbar", 1 - mu * setting.effective / 2)
