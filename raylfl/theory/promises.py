"""The theorems that apply to an experiment: admissible step sizes, and the guarantees at its own step size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.focus import Focus
from raylfl.algorithms.sfl import SFL
from raylfl.diagnostics.surrogate import chi2, surrogate_weights
from raylfl.parts import Experiment
from raylfl.theory import fedacs, focus, sfl
from raylfl.theory.bounds import StepBound
from raylfl.theory.constants import Constants
from raylfl.theory.facts import Facts
from raylfl.theory.quadratic import QuadraticProblem


@dataclass(frozen=True)
class Promise:
    """The statement of a theorem about this run."""

    theorem: str
    what: str
    value: float


def setting_of(experiment: Experiment, facts: Facts) -> sfl.Setting:
    """The run as a setting of SFL's theorems."""
    sequential = isinstance(experiment.algorithm, SFL)
    return sfl.Setting(sequential, experiment.world.count, facts.cohort, facts.tau, experiment.rule.lr)


def step_bounds(experiment: Experiment, facts: Facts, constants: Constants) -> Iterator[StepBound]:
    """The step sizes of every theorem about the method; with mu if F is strongly convex."""
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


def sfl_bound(setting: sfl.Setting, R: int, constants: Constants) -> sfl.Bound:
    """The bound of [2] Theorems 1 and 2 after R rounds, convex or strongly convex."""
    numbers = {
        "L": constants.value("L"),
        "D": constants.value("D"),
        "sigma": constants.value("sigma"),
        "zeta_star": constants.value("zeta*"),
    }
    mu = constants.value("mu")
    if mu > 0:
        return sfl.strongly_convex_bound(setting, R, mu=mu, **numbers)
    return sfl.convex_bound(setting, R, **numbers)


def promises(
    experiment: Experiment,
    facts: Facts,
    constants: Constants,
    problem: QuadraticProblem | None,
    steps: Sequence[StepBound],
) -> Iterator[Promise]:
    """Rates, floors and limits at the configured step size, for theorems whose bound it satisfies."""
    algorithm, n, eta = experiment.algorithm, experiment.world.count, experiment.rule.lr
    R, mu, sigma = experiment.world.rounds, constants.value("mu"), constants.value("sigma")
    inside = {(s.theorem, s.case) for s in steps if s.admits(eta)}
    if isinstance(algorithm, Focus) and facts.takes_part is not None:
        theorem = "[1] Thm 4" if sigma > 0 else "[1] Thm 1"
        if (theorem, "strongly convex") in inside:
            factor = focus.contraction(eta, mu, n)
            yield Promise(theorem, "factor a round on |x - x*|^2", factor)
            yield Promise(theorem, "rounds for six digits of |x - x*|^2", log(1e6) / -log(factor))
            if sigma > 0:
                floor = focus.noise_floor(eta, mu, n, float(facts.takes_part.min()), sigma)
                yield Promise(theorem, "floor of |x - x*|^2", floor)
    if problem is None:
        return
    if (type(algorithm) is FedAvg or isinstance(algorithm, SFL)) and mu >= 0:
        setting = setting_of(experiment, facts)
        theorem = "[2] Thm 1" if setting.sequential else "[2] Thm 2"
        if any(name == theorem for name, _ in inside):
            bound = sfl_bound(setting, R, constants)
            yield Promise(theorem, f"F(xbar) - F* after {R} rounds, at most", bound.total)
            for name, value in vars(bound).items():
                yield Promise(theorem, f"  of which {name.replace('_', ' ')}", value)
    yield from _limits(experiment, facts, constants, problem, inside)


def _limits(
    experiment: Experiment, facts: Facts, constants: Constants, problem: QuadraticProblem, inside: set[tuple[str, str]]
) -> Iterator[Promise]:
    """The limits of FedAvg and related methods: the bound of [1] Theorem 3, and [3] at this step size and at 0."""
    algorithm, eta = experiment.algorithm, experiment.rule.lr
    if facts.coefficients is None or not facts.coefficients.any() or not algorithm.uploads_update:
        return
    if type(algorithm) is FedAvg and ("[1] Thm 3", "strongly convex") in inside:
        bias = focus.fedavg_limit(
            eta,
            constants.value("L"),
            constants.value("mu"),
            facts.tau,
            constants.value("D_m"),
            constants.value("delta_q"),
        )
        yield Promise("[1] Thm 3", "limit of |x - x*|^2, at most", bias.total)
        for name, value in vars(bias).items():
            yield Promise("[1] Thm 3", f"  of which {name.replace('_', ' ')}", value)
    omega = surrogate_weights(facts.coefficients, facts.system.a_norm)
    weights = problem.weights
    yield Promise("[3] Thm 2", "chi2(w || Omega)", chi2(weights, omega))
    surrogate = problem.weighted(omega)
    _, kappa = surrogate.dissimilarity()
    yield Promise("[3] Thm 2", "limit of |grad F|^2, at most", fedacs.gradient_bound(chi2(weights, omega), kappa))
    optimum, scale = problem.optimum, float(np.linalg.norm(problem.optimum)) or 1.0
    gradient = float(np.linalg.norm(weights @ problem.gradients(surrogate.optimum)))
    least = fedacs.distance_bound(gradient, constants.value("L"))
    yield Promise("[3] Cor. 2.1", "distance of the limit from x* as eta -> 0, relative, at least", least / scale)
    away = float(np.linalg.norm(surrogate.optimum - optimum))
    yield Promise("[3] eq. 4", "distance of the limit from x* as eta -> 0, relative", away / scale)
    if problem.dim <= 128 and not experiment.rule.momentum:
        end = fedacs.limit(problem, facts.coefficients, facts.steps, eta, algorithm.proximal)
        yield Promise(
            "[3] eq. 39",
            "distance of the limit from x* at this eta, relative",
            float(np.linalg.norm(end - optimum)) / scale,
        )
    yield Promise(
        "[3] Cor. 2.2",
        "deviation from the consistency condition",
        fedacs.consistency(facts.system.failure, facts.system.a_norm),
    )
