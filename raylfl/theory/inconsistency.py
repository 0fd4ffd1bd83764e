"""FedACS's theorems [3] applied to an experiment: FedAvg and related methods as descent on a surrogate objective.

The surrogate objective is F~ = sum_i Omega_i f_i, with Omega_i proportional to client i's expected weight in the server
step times its local work. [1] and [3]: papers listed in `raylfl.theory`.
"""

from collections.abc import Iterator
from math import sqrt

import numpy as np

from raylfl.algorithms.fedacs import FedACS
from raylfl.core.arrays import Floats
from raylfl.diagnostics.surrogate import chi2
from raylfl.experiment.parts import Experiment
from raylfl.theory import fedacs, focus
from raylfl.theory.constants import Constants, Premises
from raylfl.theory.facts import Facts, plain_sgd, violations
from raylfl.theory.quadratic import QuadraticProblem
from raylfl.theory.statements import Line, Promise, StepBound, bound, distances


def step_bounds(experiment: Experiment, facts: Facts, constants: Constants) -> Iterator[StepBound]:
    """The bound of FedACS's Theorem 1, or of Theorem 3 if the method is FedACS, on the local step size.

    No bound is given unless the surrogate weights are known and the same in every round.
    """
    beta = constants.value("beta~")
    if facts.over_rounds is not None and np.isfinite(beta):
        name = "[3] Thm 3" if isinstance(experiment.algorithm, FedACS) else "[3] Thm 1"
        yield fedacs.surrogate_step(constants.value("L"), float(facts.over_rounds.a_norm.max()), beta, name)


def promises(run: Premises) -> Iterator[Promise]:
    """Statements of [1] and [3] about the mean squared gradient over the rounds and about the limit of the method.

    The statements are the bounds of [3] Theorems 1 and 3, the bounds of [1] on FedAvg, the limits of [3] at the run's
    step size and as eta -> 0, and the deviation from the consistency condition of [3].
    """
    experiment, facts, constants, problem = run.experiment, run.facts, run.constants, run.problem
    if facts.surrogate is None or facts.coefficients is None or not experiment.algorithm.uploads_update:
        return
    _, omega = facts.surrogate
    same = chi2(experiment.world.population.weights, omega) < 1e-9
    if problem is None:
        if same and constants.exact("A"):
            yield from _of_rounds(run, constants.value("A"), same)
        return
    surrogate = problem.weighted(omega)
    gap = surrogate.value(constants.start) - surrogate.value(surrogate.optimum)
    yield from _of_rounds(run, gap, same)
    if ("[1] Thm 3", "strongly convex") in run.inside and facts.equal_steps:
        yield from _of_focus(run)
    yield from _as_eta_vanishes(run, problem, surrogate)
    if problem.dim <= 128 and not any(plain_sgd(experiment)):
        eta, prox = experiment.algorithm.step_length(facts.system), experiment.algorithm.proximal
        end = fedacs.limit(problem, facts.coefficients, facts.steps, eta, prox)
        off = float(np.linalg.norm(end - problem.optimum))
        independent = not any(violations(experiment, facts))
        lines = distances("limit at this eta", run.scale, lambda r: off) if independent else ()
        yield Promise("[3] eq. 39", "distance of the limit from x* at this eta, relative", off / run.scale, lines)
    yield from _of_sampling(experiment, facts, problem.weights)


def _of_sampling(experiment: Experiment, facts: Facts, weights: Floats) -> Iterator[Promise]:
    """[3] Corollary 2.2 for E[c_i] ~ w_i; for FedACS, the preference of few local steps."""
    assert facts.surrogate is not None
    arrives, (shares, _) = 1 - facts.system.failure, facts.surrogate
    if np.allclose(shares, weights * arrives / (weights @ arrives), rtol=1e-6, atol=0):
        deviation = fedacs.consistency(facts.system.failure, facts.system.a_norm)
        yield Promise("[3] Cor. 2.2", "deviation from the consistency condition", deviation)
    if isinstance(experiment.algorithm, FedACS) and not facts.equal_steps and arrives.min() > 0:
        chances = shares / arrives
        few, many = (float(chances[facts.steps == steps].mean()) for steps in (facts.steps.min(), facts.tau))
        if many > 0:
            yield Promise("[3] sec. 6", "chance to be sampled, fewest over most local steps", few / many)


def _of_rounds(run: Premises, gap: float, same: bool) -> Iterator[Promise]:
    """The bound of FedACS's Theorem 1 or 3 on the mean of |grad F~|^2; a curve for reports only if F~ = F (same)."""
    theorem = next((name for name, _ in run.inside if name in ("[3] Thm 1", "[3] Thm 3")), None)
    system, eta = run.facts.over_rounds, run.experiment.rule.lr
    if theorem is None or system is None:
        return
    numbers = {"gap": gap} | {name: run.constants.value(name) for name in ("L", "kappa", "sigma")}

    def most(R: float) -> float:
        return fedacs.surrogate_bound(eta, system.shares[: int(R)], system.a_norm[: int(R)], **numbers)

    R = len(system.shares)
    line = Line("global/grad_norm", "bound on the mean", lambda r: np.sqrt([most(k) for k in np.clip(r, 1, R)]))
    what, lines = f"mean of |grad F~|^2 over {R} rounds", (line,) if same else ()
    yield bound(theorem, what, most(R), lines, proved=run.proved)


def _of_focus(run: Premises) -> Iterator[Promise]:
    """The bounds of [1] on FedAvg: on the limit (Theorem 3, total and terms) and the consensus error (Lemma 2)."""
    L, mu, spread, bias = (run.constants.value(name) for name in ("L", "mu", "D_m", "delta_q"))
    eta, tau = run.experiment.rule.lr, run.facts.tau
    limit = focus.fedavg_limit(eta, L, mu, tau, spread, bias)
    lines = distances("bound on the limit", run.scale, lambda r: sqrt(limit.total))
    yield bound("[1] Thm 3", "limit of |x - x*|^2", limit.total, lines, proved=run.stays)
    for name, value in limit.items():
        yield Promise("[1] Thm 3", f"  of which {name}", value)
    _, after = focus.consensus_bound(eta, tau, spread, spread)  # delta_q <= sigma_G for the shares of any cohort
    error = Line("update/consensus", "bound", lambda r: after)
    what = "consensus error of the clients after their local work"
    yield bound("[1] Lemma 2", what, after, (error,), proved=run.stays)


def _as_eta_vanishes(run: Premises, problem: QuadraticProblem, surrogate: QuadraticProblem) -> Iterator[Promise]:
    """FedACS's statements on the limit as eta -> 0: Theorem 2 (eq. 12 with noise), Corollary 2.1 and eq. 4."""
    constants, weights, scale = run.constants, problem.weights, run.scale
    distance = _unless_rounding(chi2(weights, surrogate.weights))
    yield Promise("[3] Thm 2", "chi2(w || Omega)", distance)
    most = fedacs.gradient_bound(distance, constants.value("kappa"), constants.value("sigma"))
    line = Line("global/grad_norm", "bound on the limit as eta -> 0", lambda r: sqrt(most))
    yield bound("[3] Thm 2", "limit of |grad F|^2 as eta -> 0", most, (line,) if most else (), proved=run.stays)
    gradient = float(np.linalg.norm(weights @ problem.gradients(surrogate.optimum)))
    least = _unless_rounding(fedacs.distance_bound(gradient, constants.value("L")) / scale)
    what = "distance of the limit from x* as eta -> 0, relative"
    yield bound("[3] Cor. 2.1", what, least, sense="at least", proved=run.stays)
    away = _unless_rounding(float(np.linalg.norm(surrogate.optimum - problem.optimum)) / scale) * scale
    lines = distances("limit as eta -> 0", scale, lambda r: away) if away else ()
    yield Promise("[3] eq. 4", what, away / scale, lines)


def _unless_rounding(value: float) -> float:
    """The value, or 0 if it is at most 1e-12: a line at a rounding error would stretch a logarithmic axis."""
    return value if value > 1e-12 else 0.0
