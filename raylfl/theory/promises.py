"""The theorems that apply to an experiment: the step sizes they admit, and their guarantees at its step size.

[1] to [4]: the papers listed in `raylfl.theory`.
"""

from collections.abc import Iterator, Sequence
from math import log

import numpy as np

from raylfl.algorithms.fedacs import FedACS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.fedaware import FedAWARE
from raylfl.algorithms.focus import Focus
from raylfl.algorithms.sfl import SFL
from raylfl.core.arrays import Floats
from raylfl.experiment.parts import Experiment
from raylfl.theory import fedaware_rate, focus, inconsistency, sfl
from raylfl.theory.constants import Constants, Premises
from raylfl.theory.facts import Facts, changes, violations
from raylfl.theory.quadratic import QuadraticProblem
from raylfl.theory.statements import Line, Promise, StepBound, Terms, bound, distances

FOCUS = {  # case -> the theorem of [1] about it, for stochastic and for full gradients
    "strongly convex": ("[1] Thm 4", "[1] Thm 1"),
    "PL": ("[1] Thm 5", "[1] Thm 1"),
    "non-convex": ("[1] Thm 6", "[1] Thm 1"),
}


def momentum_factor(experiment: Experiment, facts: Facts) -> float | None:
    """The constant beta = (1 - alpha) p of FedAWARE's Theorem 4.1; None if the theorem does not apply.

    alpha: the weight of the old momentum; p: the probability that a client takes part. The theorem needs Alg. 1
    (normalize=false) with alpha < 1, the same p for all clients and no lost uploads. Every client must take at least
    one local step, the same number in every round, and all clients must take part in round 0.
    """
    algorithm, p = experiment.algorithm, facts.takes_part
    if not isinstance(algorithm, FedAWARE) or algorithm.normalize or algorithm.alpha == 1 or p is None:
        return None
    if np.ptp(p) > 0 or facts.system.failure.any() or facts.steps.min() < 1 or experiment.work.varies:
        return None
    everyone = algorithm.warmup == "all" or p.min() == 1
    return (1 - algorithm.alpha) * float(p.min()) if everyone else None


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
    if isinstance(algorithm, Focus) and (q := _focus_probability(experiment, facts)) > 0:
        L, number = L * _scale(experiment), 0 if constants.value("sigma") > 0 else 1
        if mu > 0:
            yield focus.strongly_convex_step(L, mu, n, tau, q, FOCUS["strongly convex"][number])
        if beta > 0:
            yield focus.smooth_step(L, n, tau, q, "PL", FOCUS["PL"][number])
        yield focus.smooth_step(L, n, tau, q, "non-convex", FOCUS["non-convex"][number])
    if facts.averages:
        setting = setting_of(experiment, facts)
        if mu >= 0:
            yield sfl.convex_step(setting, L, "strongly convex" if mu > 0 else "convex")
        elif np.isfinite(constants.value("beta")) or np.isnan(mu):
            yield sfl.nonconvex_step(setting, L, 0.0 if np.isnan(mu) else constants.value("beta"))
        if isinstance(algorithm, FedAvg) and mu > 0 and constants.value("sigma") == 0:
            yield focus.fedavg_step(L, tau)
    yield from inconsistency.step_bounds(experiment, facts, constants)
    if isinstance(algorithm, FedAWARE) and (factor := momentum_factor(experiment, facts)) is not None:
        weights, steps = experiment.world.population.weights, facts.steps.astype(np.float64)
        yield fedaware_rate.direction_step(L, weights, steps, algorithm.gamma, factor)


def _focus_probability(experiment: Experiment, facts: Facts) -> float:
    """The q_min of FOCUS; 0 if it is unknown, or if the server has a learning rate of its own."""
    assert isinstance(experiment.algorithm, Focus)
    if facts.takes_part is None or experiment.algorithm.gamma is not None:
        return 0.0
    return float(facts.takes_part.min())


def _scale(experiment: Experiment) -> float:
    """The largest N w_i: FOCUS multiplies f_i by it, so that F is their plain mean."""
    return float(experiment.world.count * experiment.world.population.weights.max())


def left_out(experiment: Experiment, facts: Facts) -> Iterator[str]:
    """Messages about theorems on the run's method that do not apply to this run; each names the assumptions."""
    algorithm = experiment.algorithm
    if isinstance(algorithm, Focus) and _focus_probability(experiment, facts) == 0:
        yield (
            "[1] needs a known probability above 0 with which each client takes part, and the server's step size equal "
            "to local.lr (gamma: null)"
        )
    if isinstance(algorithm, (FedAvg, FedACS)) and facts.over_rounds is None:
        yield (
            "[3] Theorems 1 and 3 need surrogate weights that are known and the same in every round, a cohort of fixed "
            "size, gamma = 1, and a rule whose weights have a sum of at most 1 (such as anonymous)"
        )
    if isinstance(algorithm, FedAWARE) and momentum_factor(experiment, facts) is None:
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

    A theorem with a bound in `steps` is left out if the run's step size exceeds it, or if L is only an estimate. A
    number is called a bound ("at most") only if the run satisfies all assumptions of the proof (`violations`), with a
    system that stays as it is in round 0 and a bound sigma of the noise.
    problem: the f_i as quadratics, None if they are not. steps: the result of `step_bounds`.
    """
    algorithm, mu = experiment.algorithm, constants.value("mu")
    inside = {(s.theorem, s.case) for s in steps if s.admits(experiment.rule.lr)} if constants.exact("L") else set()
    proved = constants.noise_bounded and not any(violations(experiment, facts))
    run = Premises(experiment, facts, constants, problem, inside, proved, proved and not changes(experiment))
    if isinstance(algorithm, Focus) and _focus_probability(experiment, facts) > 0:
        yield from _of_focus(run)
    if facts.averages and mu >= 0 and facts.even and facts.equal_steps:
        setting = setting_of(experiment, facts)
        if any(theorem == setting.theorem for theorem, _ in inside) and constants.exact("D"):
            yield from _of_sfl(run, setting)
    yield from inconsistency.promises(run)
    yield from _of_direction(run)


def _of_focus(run: Premises) -> Iterator[Promise]:
    """Rates and noise floors of FOCUS in the three cases of [1] Theorems 1 and 4 to 6, as far as the run is inside."""
    experiment, facts, constants = run.experiment, run.facts, run.constants
    n, R, eta, tau = experiment.world.count, experiment.world.rounds, experiment.rule.lr, facts.tau
    weight, q = _scale(experiment), _focus_probability(experiment, facts)
    L, sigma = weight * constants.value("L"), weight * constants.value("sigma")
    mu, beta = constants.value("mu"), constants.value("mu_F")
    g0, D, gap = float(np.sqrt(weight)) * constants.value("g0"), constants.value("D"), constants.value("A")
    theorem = {case: name for name, case in run.inside if case in FOCUS and name in FOCUS[case]}
    if "strongly convex" in theorem and constants.exact("D"):
        factor, name = focus.contraction(eta, mu, n), theorem["strongly convex"]
        floor = focus.noise_floor(eta, mu, n, tau, q, sigma)
        first = D**2 + focus.start_distance(eta, mu, n, tau, q, g0)

        def distance(r: Floats | float) -> Floats:
            return np.asarray(factor**r * first + floor)

        lines = distances("bound", run.scale, lambda r: np.sqrt(distance(r)))
        yield Promise(name, "factor a round on |x - x*|^2 + (1/N) sum_i |x - z_i|^2", factor)
        yield Promise(name, "rounds for six digits of it", log(1e6) / -log(factor))
        yield bound(name, f"|x - x*|^2 after {R} rounds", float(distance(R)), lines, proved=run.stays)
        if sigma > 0:
            yield bound(name, "  of which noise floor", floor, proved=run.stays)
    first_gap = gap + focus.start_gap(eta, L, n, tau, q, g0)
    if "PL" in theorem and constants.exact("A"):
        factor, name = focus.pl_contraction(eta, beta, n), theorem["PL"]
        most = factor**R * first_gap + focus.pl_noise_floor(eta, L, beta, n, tau, q, sigma)
        yield Promise(name, "factor a round on F - F* + (L/2N) sum_i |x - z_i|^2 (PL)", factor)
        yield bound(name, f"F(x) - F* after {R} rounds (PL)", most, proved=run.stays)
    if "non-convex" in theorem and constants.exact("A"):
        noise = focus.nonconvex_noise_floor(eta, L, n, tau, q, sigma)

        def mean(r: Floats | float) -> Floats:
            return np.asarray(focus.nonconvex_bound(eta, n, r, first_gap) + noise)

        line = Line("global/grad_norm", "bound on the mean", lambda r: np.sqrt(mean(r)))
        name = f"{theorem['non-convex']}, eq. {28 if sigma > 0 else 25}"
        yield bound(name, f"mean of |grad F|^2 over {R} rounds", float(mean(R)), (line,), proved=run.stays)


def _of_sfl(run: Premises, setting: sfl.Setting) -> Iterator[Promise]:
    """The bound of [2] Theorems 1, 2, its terms, and the `eval.average` of its xbar; at first the convex bound."""
    constants, R = run.constants, run.experiment.world.rounds
    theorem, convexity = setting.theorem, constants.value("mu")
    strongly = convexity * setting.effective * R >= 1  # before 1/(mu e) rounds the other bound holds alone
    L, D, sigma, star = (constants.value(name) for name in ("L", "D", "sigma", "zeta*"))

    def most(r: int) -> Terms:
        if strongly:
            return sfl.strongly_convex_bound(setting, r, mu=convexity, L=L, D=D, sigma=sigma, zeta_star=star)
        return sfl.convex_bound(setting, r, L=L, D=D, sigma=sigma, zeta_star=star)

    def gap(r: Floats) -> Floats:
        valid = convexity * setting.effective * r >= 1 if strongly else r >= 0
        return np.array([most(int(k)).total if holds else np.nan for k, holds in zip(r, valid, strict=True)])

    lines = [Line("average/gap", "bound", gap)]
    if convexity > 0:  # F(x) - F* >= mu |x - x*|^2 / 2
        lines.append(Line("average/distance_abs", "bound", lambda r: np.sqrt(2 * gap(r) / convexity)))
        lines.append(Line("average/distance", "bound", lambda r: np.sqrt(2 * gap(r) / convexity) / run.scale))
    what = f"F(xbar) - F* after {R} rounds ({'strongly convex' if strongly else 'convex'})"
    yield bound(theorem, what, most(R).total, tuple(lines), proved=run.stays)
    for name, value in most(R).items():
        yield Promise(theorem, f"  of which {name}", value)
    average = 1 - convexity * setting.effective / 2 if strongly else 1.0
    yield Promise(theorem, "eval.average, for this xbar", average)


def _of_direction(run: Premises) -> Iterator[Promise]:
    """The bound of FedAWARE's Theorem 4.1, as corrected in `fedaware_rate`, on the mean of |d|^2 over the rounds.

    d: the min-norm point of the clients' momenta, the direction of a server step. The bound holds as long as every
    |grad f_i| is at most the constant G.
    """
    experiment, facts, constants = run.experiment, run.facts, run.constants
    beta, theorem = momentum_factor(experiment, facts), "[4] Thm 4.1, corrected"
    if beta is None or not isinstance(experiment.algorithm, FedAWARE) or (theorem, "non-convex") not in run.inside:
        return
    if not all(constants.exact(name) for name in ("A", "G", "sigma")):
        return
    weights, steps = experiment.world.population.weights, facts.steps.astype(np.float64)
    L, sigma, G, gap = (constants.value(name) for name in ("L", "sigma", "G", "A"))
    eta_l, eta, R = experiment.rule.lr, experiment.algorithm.gamma, experiment.world.rounds
    local = fedaware_rate.local_error(eta_l, steps, weights, L=L, sigma=sigma, G=G)

    def most(T: float) -> float:
        return fedaware_rate.direction_bound(
            eta_l, eta, T, steps=steps, weights=weights, beta=beta, gap=gap, local=local
        )

    line = Line("update/step", "bound on the mean", lambda r: eta * np.sqrt([most(k) for k in r]))
    sense, what = "at most while |grad f_i| <= G", f"mean of |d|^2 over {R} rounds"
    yield bound(theorem, what, most(R), (line,), proved=run.stays, sense=sense)
