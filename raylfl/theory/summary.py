"""Theory of an experiment: its constants, the step sizes that theorems admit, and the rates they give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np
import torch

from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.focus import Focus
from raylfl.algorithms.sfl import SFL
from raylfl.core.algorithm import overrides
from raylfl.core.keyed import keyed
from raylfl.core.population import Floats, Ints, SystemInfo
from raylfl.diagnostics.surrogate import chi2, surrogate_weights
from raylfl.parts import Experiment
from raylfl.runtime.round.plan import Planner
from raylfl.theory import fedacs, fedaware, focus, sfl
from raylfl.theory.bounds import StepBound
from raylfl.theory.objectives import SAMPLES, Objectives
from raylfl.theory.quadratic import QuadraticProblem

MOST_CLIENTS = 32  # whose curvature and gradient noise are looked at where they are estimates
EXACT, BALL, ESTIMATE = "exact", "within |x0 - x*| of x*", "estimate at x0"


@dataclass(frozen=True)
class Constant:
    """symbol: as in the papers; how: exact, a bound within a ball, or an estimate at x0."""

    symbol: str
    value: float
    meaning: str
    how: str


@dataclass(frozen=True)
class Promise:
    """The statement of a theorem about this run."""

    theorem: str
    what: str
    value: float


@dataclass
class Theory:
    """The theory of an experiment; eta: the configured step size; notes: assumptions that the run violates."""

    eta: float
    constants: list[Constant] = field(default_factory=list)
    steps: list[StepBound] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def value(self, symbol: str) -> float:
        """The constant of this symbol; nan where it is not known."""
        return next((c.value for c in self.constants if c.symbol == symbol), float("nan"))

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "eta": self.eta,
            "constants": [vars(c) for c in self.constants],
            "steps": [vars(s) | {"inside": s.admits(self.eta)} for s in self.steps],
            "promises": [vars(p) for p in self.promises],
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Facts:
    """The numbers of a run that theorems speak of. takes_part: the probability of each client's upload, [N]."""

    system: SystemInfo
    steps: Ints
    batch_sizes: Ints
    takes_part: Floats | None
    coefficients: Floats | None
    cohort: int

    @property
    def tau(self) -> int:
        """The most local steps of a client."""
        return int(self.steps.max())


def facts_of(experiment: Experiment) -> Facts:
    """Round 0 of the run, before it is drawn."""
    planner = Planner(experiment)
    server = experiment.algorithm.init_server(torch.zeros(1), experiment.world.population)
    system = planner.system(0)
    steps, batch_sizes = experiment.work.draw(0, planner.everyone, experiment.world)
    marginals = planner.marginals(system, server)
    received = None if marginals is None else np.minimum(marginals, 1.0) * (1 - system.failure)
    expected = (
        None
        if marginals is None
        else experiment.algorithm.expected_coefficients(system, marginals, planner.independent)
    )
    return Facts(system, steps, batch_sizes, received, expected, min(system.size, experiment.world.count))


def theory_of(experiment: Experiment) -> Theory:
    """The theory of an experiment; exact for quadratics, estimates at x0 elsewhere."""
    objectives, facts = Objectives(experiment), facts_of(experiment)
    problem = objectives.quadratic()
    theory = Theory(experiment.rule.lr, notes=list(broken_assumptions(experiment, facts)))
    if problem is not None:
        theory.constants += exact_constants(problem, objectives, facts)
    else:
        theory.constants += estimates(objectives, facts)
    theory.steps += step_bounds(experiment, facts, theory)
    theory.promises += promises(experiment, facts, theory, problem)
    if not theory.steps:
        name = experiment.config.resolved["algorithm"]["name"]
        theory.notes.append(f"no theorem of the four papers is about {name}")
    return theory


def broken_assumptions(experiment: Experiment, facts: Facts) -> Iterator[str]:
    """The properties of this run that the theorems exclude."""
    rule = experiment.rule
    if rule.momentum:
        yield "local.momentum: the theorems are about plain SGD"
    if rule.lr_schedule is not None and rule.lr_schedule.name != "constant":
        yield "local.lr_schedule: the theorems have a constant step size; the first is taken"
    if rule.clip_norm is not None:
        yield "local.clip_norm: the theorems are about plain gradients"
    if experiment.config.local.dynamic or getattr(experiment.link, "dynamic", False):
        yield "the system changes over the rounds: that of round 0 is taken"
    if facts.coefficients is None and overrides(experiment.algorithm, "expected_coefficients"):
        yield "the expected weight of a client has no closed form here: no limit is predicted"
    if len(np.unique(facts.steps)) > 1:
        yield f"local steps differ between clients ({facts.steps.min()} to {facts.tau}): the largest is taken"
    full = (facts.batch_sizes >= experiment.setup.population.sizes).all()
    if not full and experiment.setup.sampling != "with_replacement":
        yield f"local.sampling={experiment.setup.sampling}: the theorems draw samples with replacement"
    if experiment.setup.optimizer == "module":
        yield "local.optimizer=module: the theorems are about plain SGD with local.lr"


def _noise(objectives: Objectives, facts: Facts, x: Floats, clients: list[int]) -> float:
    """sigma of a mini-batch at x: the largest over these clients; 0 for full batches."""
    sizes = objectives.sizes
    variances = [
        objectives.sample_variance(i, x) / facts.batch_sizes[i] for i in clients if facts.batch_sizes[i] < sizes[i]
    ]
    return float(np.sqrt(max(variances, default=0.0)))


def exact_constants(problem: QuadraticProblem, objectives: Objectives, facts: Facts) -> Iterator[Constant]:
    """The exact constants of a quadratic problem."""
    x0, x = objectives.start, problem.optimum
    radius = float(np.linalg.norm(x0 - x))
    smooth, convex = problem.smoothness, problem.convexity
    beta, zeta = problem.dissimilarity()
    deviation = problem.deviation(radius)
    yield Constant("L", float(smooth.max()), "smoothness, largest of all f_i", EXACT)
    yield Constant("L_i min", float(smooth.min()), "smoothness, smallest of all f_i", EXACT)
    yield Constant("mu", float(convex.min()), "strong convexity, smallest of all f_i", EXACT)
    yield Constant("mu_F", problem.global_convexity, "strong convexity of F, its PL constant", EXACT)
    yield Constant("D", radius, "|x0 - x*|", EXACT)
    yield Constant("A", problem.value(x0) - problem.value(x), "F(x0) - F*", EXACT)
    yield Constant("zeta*", problem.zeta_star, "heterogeneity at x* ([2] Assumption 3b)", EXACT)
    yield Constant("beta", beta, "dissimilarity, factor of |grad F| ([2] Assumption 3a)", EXACT)
    yield Constant("zeta", zeta, "dissimilarity ([2] Assumption 3a), kappa of [3] Assumption 3", EXACT)
    yield Constant("D_m", float(deviation.max()), "|grad f_i - grad F| ([3] Assumption 4), sigma_G of [1]", BALL)
    yield Constant("G", problem.gradient_bound(radius), "|grad f_i| ([3] Assumption 7)", BALL)
    clients = list(range(problem.count))[:MOST_CLIENTS]
    yield Constant("sigma", _noise(objectives, facts, x, clients), "standard deviation of a mini-batch", "at x*")
    if facts.coefficients is not None and facts.coefficients.any():
        shares = facts.coefficients / facts.coefficients.sum()
        yield Constant("delta_q", problem.sampling_bias(shares, radius), "bias of participation ([1] eq. 37)", BALL)


def estimates(objectives: Objectives, facts: Facts) -> Iterator[Constant]:
    """At x0, for any model: curvature by Lanczos, dispersion of gradients, gradient noise."""
    x, count = objectives.start, objectives.count
    some = sorted(keyed(objectives.seed, "theory/clients").permutation(count)[:MOST_CLIENTS].tolist())
    gradients = objectives.gradients(x)
    mean = objectives.weights @ gradients
    spread = float(np.sqrt(fedaware.global_variance(gradients, objectives.weights)))
    how = ESTIMATE if count <= MOST_CLIENTS else f"{ESTIMATE}, {MOST_CLIENTS} clients"
    yield Constant("L", max(objectives.smoothness(i, x) for i in some), "smoothness, largest of the f_i", how)
    yield Constant("|grad F|", float(np.linalg.norm(mean)), "gradient of F", ESTIMATE)
    yield Constant(
        "zeta", spread, "dispersion of the grad f_i ([2] Assumption 3a with beta = 0, sigma_g of [4])", ESTIMATE
    )
    yield Constant(
        "D_m", float(np.linalg.norm(gradients - mean, axis=1).max()), "|grad f_i - grad F|, sigma_G of [1]", ESTIMATE
    )
    yield Constant("G", float(np.linalg.norm(gradients, axis=1).max()), "|grad f_i|", ESTIMATE)
    yield Constant(
        "D(x)", fedaware.diversity(gradients, objectives.weights), "gradient diversity ([4] eq. 3)", ESTIMATE
    )
    noise = _noise(objectives, facts, x, some)
    yield Constant("sigma", noise, f"standard deviation of a mini-batch, {SAMPLES} samples a client at most", how)


def _setting(experiment: Experiment, facts: Facts) -> sfl.Setting:
    sequential = isinstance(experiment.algorithm, SFL)
    return sfl.Setting(sequential, experiment.world.count, facts.cohort, facts.tau, experiment.rule.lr)


def step_bounds(experiment: Experiment, facts: Facts, theory: Theory) -> Iterator[StepBound]:
    """The step sizes of every theorem that is about the method; with mu where F is strongly convex."""
    algorithm, n, tau = experiment.algorithm, experiment.world.count, facts.tau
    L, mu, beta = theory.value("L"), theory.value("mu"), theory.value("mu_F")
    if isinstance(algorithm, Focus) and facts.takes_part is not None:
        q = float(facts.takes_part.min())
        noisy = theory.value("sigma") > 0
        if mu > 0:
            yield (focus.sg_strongly_convex_step if noisy else focus.strongly_convex_step)(L, mu, n, tau, q)
        if beta > 0:
            yield (focus.sg_pl_step if noisy else focus.pl_step)(L, beta, n, tau, q)
        yield (focus.sg_nonconvex_step if noisy else focus.nonconvex_step)(L, n, tau, q)
    if type(algorithm) is FedAvg or isinstance(algorithm, SFL):
        setting = _setting(experiment, facts)
        if mu >= 0:
            yield sfl.convex_step(setting, L, "strongly convex" if mu > 0 else "convex")
        elif np.isfinite(theory.value("beta")) or np.isnan(mu):
            yield sfl.nonconvex_step(setting, L, 0.0 if np.isnan(mu) else theory.value("beta"))
    if type(algorithm) is FedAvg and mu > 0:
        yield focus.fedavg_step(L, tau)


def promises(
    experiment: Experiment, facts: Facts, theory: Theory, problem: QuadraticProblem | None
) -> Iterator[Promise]:
    """Rates, floors and limits at the configured step size, where it is inside the theorem's bound."""
    algorithm, n, eta = experiment.algorithm, experiment.world.count, theory.eta
    R, mu, sigma = experiment.world.rounds, theory.value("mu"), theory.value("sigma")
    inside = {(s.theorem, s.case) for s in theory.steps if s.admits(eta)}
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
        setting = _setting(experiment, facts)
        theorem = "[2] Thm 1" if setting.sequential else "[2] Thm 2"
        if any(name == theorem for name, _ in inside):
            constants = {
                "L": theory.value("L"),
                "D": theory.value("D"),
                "sigma": sigma,
                "zeta_star": theory.value("zeta*"),
            }
            if mu > 0:
                bound = sfl.strongly_convex_bound(setting, R, mu=mu, **constants)
            else:
                bound = sfl.convex_bound(setting, R, **constants)
            yield Promise(theorem, f"F(xbar) - F* after {R} rounds, at most", bound.total)
            for name, value in vars(bound).items():
                yield Promise(theorem, f"  of which {name.replace('_', ' ')}", value)
    yield from _limits(experiment, facts, theory, problem, inside)


def _limits(
    experiment: Experiment, facts: Facts, theory: Theory, problem: QuadraticProblem, inside: set[tuple[str, str]]
) -> Iterator[Promise]:
    """The limits of FedAvg and related methods: the bound of [1] Theorem 3, and [3] at this step size and at 0."""
    algorithm, eta = experiment.algorithm, theory.eta
    if facts.coefficients is None or not facts.coefficients.any() or not algorithm.uploads_update:
        return
    if type(algorithm) is FedAvg and ("[1] Thm 3", "strongly convex") in inside:
        bias = focus.fedavg_limit(
            eta, theory.value("L"), theory.value("mu"), facts.tau, theory.value("D_m"), theory.value("delta_q")
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
    least = fedacs.distance_bound(gradient, theory.value("L"))
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
