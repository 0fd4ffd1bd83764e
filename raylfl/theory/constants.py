"""The constants of a problem: exact for quadratic f_i, bounds for softmax regression, otherwise estimates.

Estimates are measured at the initial model x0. x*: the minimiser of F = sum_i w_i f_i, f_i the objective of client i.
[1] to [4]: the papers listed in `raylfl.theory`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from raylfl.core.arrays import Floats
from raylfl.core.keyed import keyed
from raylfl.experiment.parts import Experiment
from raylfl.theory import fedaware
from raylfl.theory.facts import Facts
from raylfl.theory.objectives import SAMPLES, Objectives
from raylfl.theory.quadratic import QuadraticProblem
from raylfl.theory.softmax import SoftmaxProblem

MOST_CLIENTS = 32  # clients whose curvature and gradient noise are measured for estimates
EXACT, BALL, ESTIMATE = "exact", "bound, for |x - x*| <= r", "estimate at x0"
START_BALL, EVERYWHERE = "bound, for |x - x*| <= D", "bound, for all x"


@dataclass(frozen=True)
class Constant:
    """A constant of the problem, such as the smoothness L.

    symbol: its name in the papers. how: whether the value is exact, a bound or an estimate, and for which parameters x.
    """

    symbol: str
    value: float
    meaning: str
    how: str


class Constants(list[Constant]):
    """The constants of a problem, in display order.

    start: the initial model x0 [d]. clients: symbol -> values of all clients [N], for those constants of single clients
    (such as L_i) that are known.
    """

    start: Floats
    clients: dict[str, Floats]

    def value(self, symbol: str) -> float:
        """The value of the constant with this symbol; nan if unknown."""
        return next((c.value for c in self if c.symbol == symbol), float("nan"))

    def exact(self, symbol: str) -> bool:
        """Whether the constant is known and its `how` does not say that it is an estimate; a bound is no estimate."""
        return any(c.symbol == symbol and ESTIMATE not in c.how for c in self)

    @property
    def noise_bounded(self) -> bool:
        """Whether sigma bounds the noise for all parameters x; it does not if it was measured at one x."""
        return any(c.symbol == "sigma" and c.how in (EXACT, EVERYWHERE) for c in self)


@dataclass(frozen=True)
class Premises:
    """A run with all that theorems need to know of it: its quantities and the constants of its problem.

    problem: the f_i as quadratics, None if they are not. inside: (theorem, case) of each step-size bound that the run
    satisfies. proved: whether bounds are proved for this run if they use the system of every round. stays: the same for
    bounds that use the system of round 0.
    """

    experiment: Experiment
    facts: Facts
    constants: Constants
    problem: QuadraticProblem | None
    inside: set[tuple[str, str]]
    proved: bool
    stays: bool

    @property
    def scale(self) -> float:
        """The norm |x*| of the minimiser, the unit of relative distances; 1 if it is 0 or unknown."""
        return 1.0 if self.problem is None else float(np.linalg.norm(self.problem.optimum)) or 1.0


def constants_of(objectives: Objectives, facts: Facts, problem: QuadraticProblem | None) -> Constants:
    """Computes all constants of an experiment's problem.

    objectives: the clients' objectives f_i. facts: the quantities of the run. problem: the f_i as quadratics, None if
    they are not quadratic.
    """
    clients: dict[str, Floats] = {}
    if problem is not None:
        found = Constants(exact_constants(problem, objectives, facts))
        radius = problem.reach(objectives.start)
        clients = {"L_i": problem.smoothness, "mu_i": problem.convexity, "D_i": problem.deviation(radius)}
    elif (regression := objectives.softmax()) is not None:
        found = Constants(of_softmax(regression, objectives, facts))
        clients = {"L_i": regression.smoothness, "D_i": regression.deviation()}
    else:
        found = Constants(estimates(objectives, facts))
    found.start, found.clients = objectives.start, clients
    return found


def of_softmax(problem: SoftmaxProblem, objectives: Objectives, facts: Facts) -> Iterator[Constant]:
    """The constants of softmax regression: bounds for all parameters x, and exact values if the minimiser is known.

    With a weight decay, the bound G on |grad f_i| holds for |x - x*| <= |x0 - x*| only. G is then left out if the
    minimiser x* is unknown.
    """
    smoothness, decay, weights, start = problem.smoothness, problem.decay, problem.weights, objectives.start
    yield Constant("L", float(smoothness.max()), "smoothness, largest of all f_i", EVERYWHERE)
    yield Constant("L_i min", float(smoothness.min()), "smoothness, smallest of all f_i", EVERYWHERE)
    yield Constant("mu", decay, "strong convexity of all f_i: local.weight_decay", EVERYWHERE)
    yield Constant("mu_F", decay, "strong convexity of F, its PL constant", EVERYWHERE)
    x = problem.optimum
    gap = float(weights @ problem.values(start)[0])
    if x is None:
        yield Constant("A", gap, "F(x0) - F*, at most F(x0)", EVERYWHERE)
    else:
        values, gradients = problem.values(x)
        yield Constant("D", float(np.linalg.norm(start - x)), "|x0 - x*|", EXACT)
        yield Constant("A", gap - float(weights @ values), "F(x0) - F*", EXACT)
        star = float(np.sqrt(weights @ np.square(gradients).sum(axis=1)))
        yield Constant("zeta*", star, "heterogeneity at x* ([2] Assumption 3b)", EXACT)
    yield Constant("beta", 0.0, "dissimilarity, factor of |grad F| ([2] Assumption 3a)", EVERYWHERE)
    yield Constant("zeta", problem.dissimilarity(weights), "dissimilarity ([2] Assumption 3a)", EVERYWHERE)
    what = "|grad f_i - grad F| ([3] Assumption 4), sigma_G of [1]"
    yield Constant("D_m", float(problem.deviation().max()), what, EVERYWHERE)
    if decay == 0:
        yield Constant("G", float(problem.slopes.max()), "|grad f_i| ([3] Assumption 7)", EVERYWHERE)
    elif x is not None:
        reach = float(np.linalg.norm(x)) + float(np.linalg.norm(start - x))
        yield Constant("G", float(problem.slopes.max()) + decay * reach, "|grad f_i| ([3] Assumption 7)", START_BALL)
    noise = np.where(facts.full, 0.0, problem.noise / np.maximum(facts.batch_sizes, 1))
    yield Constant("sigma", float(np.sqrt(noise.max())), "standard deviation of a mini-batch", EVERYWHERE)
    if facts.surrogate is not None:
        shares, omega = facts.surrogate
        bias = float(np.abs(shares - weights) @ problem.slopes)
        yield Constant("delta_q", bias, "bias of participation ([1] eq. 37)", EVERYWHERE)
        what = "of the surrogate objective ([3] Assumption 3)"
        yield Constant("beta~", 1.0, f"dissimilarity {what}, factor of |grad F~|", EVERYWHERE)
        yield Constant("kappa", problem.dissimilarity(omega), f"dissimilarity {what}", EVERYWHERE)
    yield from _at_start(objectives.gradients(start), weights)


def _at_start(gradients: Floats, weights: Floats) -> Iterator[Constant]:
    """The constants of the gradients grad f_i(x0) [N, d]; weights: w_i [N]."""
    norm = float(np.sqrt(weights @ np.square(gradients).sum(axis=1)))
    yield Constant("g0", norm, "root mean square of the |grad f_i| ([1], start)", "at x0")
    sigma_g = float(np.sqrt(fedaware.global_variance(gradients, weights)))
    yield Constant("sigma_g", sigma_g, "dispersion of the grad f_i ([4] Assumption 3.1)", "at x0")
    yield Constant("D(x)", fedaware.diversity(gradients, weights), "gradient diversity ([4] eq. 3)", "at x0")


def _measured(where: str, count: int) -> str:
    """The text `how` of a constant that is measured on all clients, or on MOST_CLIENTS of them."""
    return where if count <= MOST_CLIENTS else f"{where}, {MOST_CLIENTS} clients"


def _noise(objectives: Objectives, facts: Facts, x: Floats, clients: list[int]) -> float:
    """The largest standard deviation, over the given clients, of a mini-batch gradient at x; 0 for full batches."""
    variances = [objectives.sample_variance(i, x) / facts.batch_sizes[i] for i in clients if not facts.full[i]]
    return float(np.sqrt(max(variances, default=0.0)))


def exact_constants(problem: QuadraticProblem, objectives: Objectives, facts: Facts) -> Iterator[Constant]:
    """The constants of a quadratic problem: exact, or bounds for |x - x*| <= r, r of `QuadraticProblem.reach`.

    x0: the initial model; x*: the minimiser. sigma, the noise of mini-batch gradients, is measured at x* on at most
    MOST_CLIENTS clients.
    """
    x0, x = objectives.start, problem.optimum
    radius, D = problem.reach(x0), float(np.linalg.norm(x0 - x))
    smooth, convex = problem.smoothness, problem.convexity
    beta, zeta = problem.dissimilarity()
    deviation = problem.deviation(radius)
    yield Constant("L", float(smooth.max()), "smoothness, largest of all f_i", EXACT)
    yield Constant("L_i min", float(smooth.min()), "smoothness, smallest of all f_i", EXACT)
    yield Constant("mu", float(convex.min()), "strong convexity, smallest of all f_i", EXACT)
    yield Constant("mu_F", problem.global_convexity, "strong convexity of F, its PL constant", EXACT)
    yield Constant("D", D, "|x0 - x*|", EXACT)
    yield Constant("A", problem.value(x0) - problem.value(x), "F(x0) - F*", EXACT)
    yield Constant("zeta*", problem.zeta_star, "heterogeneity at x* ([2] Assumption 3b)", EXACT)
    yield Constant("beta", beta, "dissimilarity, factor of |grad F| ([2] Assumption 3a)", EXACT)
    yield Constant("zeta", zeta, "dissimilarity ([2] Assumption 3a)", EXACT)
    yield Constant("delta", problem.hessian_deviation, "heterogeneity of the Hessians ([2] sec. 4.1)", EXACT)
    yield Constant("r", radius, "no model of FedAvg is farther from x*, for full gradients and eta <= 1/L", EXACT)
    yield Constant("D_m", float(deviation.max()), "|grad f_i - grad F| ([3] Assumption 4), sigma_G of [1]", BALL)
    yield Constant("G", problem.gradient_bound(D), "|grad f_i| ([3] Assumption 7)", START_BALL)
    noise = _noise(objectives, facts, x, list(range(problem.count))[:MOST_CLIENTS])
    how = EXACT if facts.full.all() else _measured("at x*", problem.count)
    yield Constant("sigma", noise, "standard deviation of a mini-batch", how)
    if facts.surrogate is not None:
        shares, omega = facts.surrogate
        yield Constant("delta_q", problem.sampling_bias(shares, radius), "bias of participation ([1] eq. 37)", BALL)
        beta, kappa = problem.weighted(omega).dissimilarity()
        what = "of the surrogate objective ([3] Assumption 3)"
        yield Constant("beta~", float(np.sqrt(beta**2 + 1)), f"dissimilarity {what}, factor of |grad F~|", EXACT)
        yield Constant("kappa", kappa, f"dissimilarity {what}", EXACT)
    yield from _at_start(problem.gradients(x0), problem.weights)


def estimates(objectives: Objectives, facts: Facts) -> Iterator[Constant]:
    """Estimates at the initial model, for any module: smoothness, dissimilarity of gradients, gradient noise.

    Smoothness is estimated by Lanczos on differences of gradients.
    """
    x, count = objectives.start, objectives.count
    some = sorted(keyed(objectives.seed, "theory/clients").permutation(count)[:MOST_CLIENTS].tolist())
    gradients = objectives.gradients(x)
    mean = objectives.weights @ gradients
    spread = float(np.sqrt(fedaware.global_variance(gradients, objectives.weights)))
    how = _measured(ESTIMATE, count)
    smooth = [objectives.smoothness(i, x) for i in some]
    yield Constant("L", max(smooth), "smoothness, largest of the f_i", how)
    yield Constant("L_i min", min(smooth), "smoothness, smallest of the f_i", how)
    yield Constant("|grad F|", float(np.linalg.norm(mean)), "gradient of F", ESTIMATE)
    what = "dispersion of the grad f_i ([2] Assumption 3a with beta = 0, sigma_g of [4])"
    yield Constant("zeta", spread, what, ESTIMATE)
    deviation = float(np.linalg.norm(gradients - mean, axis=1).max())
    yield Constant("D_m", deviation, "|grad f_i - grad F|, sigma_G of [1]", ESTIMATE)
    yield Constant("G", float(np.linalg.norm(gradients, axis=1).max()), "|grad f_i|", ESTIMATE)
    diversity = fedaware.diversity(gradients, objectives.weights)
    yield Constant("D(x)", diversity, "gradient diversity ([4] eq. 3)", ESTIMATE)
    if facts.surrogate is not None:
        shares, omega = facts.surrogate
        bias = float(np.linalg.norm((shares - objectives.weights) @ gradients))
        yield Constant("delta_q", bias, "bias of participation ([1] eq. 37)", ESTIMATE)
        what = "of the surrogate objective ([3] Assumption 3"
        yield Constant("beta~", 1.0, f"dissimilarity {what} with beta = 1), factor of |grad F~|", ESTIMATE)
        kappa = float(np.sqrt(fedaware.global_variance(gradients, omega)))
        yield Constant("kappa", kappa, f"dissimilarity {what})", ESTIMATE)
    noise = _noise(objectives, facts, x, some)
    yield Constant("sigma", noise, f"standard deviation of a mini-batch, {SAMPLES} samples a client at most", how)
