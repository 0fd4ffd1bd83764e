"""FedAWARE's Theorem 4.1 ([4]) applied to an experiment: a bound on the lengths of the server's steps.

The theorem is used as corrected in `raylfl.theory.fedaware_rate`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from raylfl.algorithms.fedaware import FedAWARE
from raylfl.experiment.parts import Experiment
from raylfl.theory import fedaware_rate
from raylfl.theory.constants import Constants, Premises
from raylfl.theory.facts import Facts
from raylfl.theory.statements import Line, Promise, StepBound, bound


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


def step_bounds(experiment: Experiment, facts: Facts, constants: Constants) -> Iterator[StepBound]:
    """The bound of FedAWARE's Theorem 4.1 on the local step size, if the theorem applies.

    The theorem is used as corrected in `raylfl.theory.fedaware_rate`.
    """
    beta = momentum_factor(experiment, facts)
    if beta is not None and isinstance(experiment.algorithm, FedAWARE):
        weights, steps = experiment.world.population.weights, facts.steps.astype(np.float64)
        yield fedaware_rate.direction_step(constants.value("L"), weights, steps, experiment.algorithm.gamma, beta)


def promises(run: Premises) -> Iterator[Promise]:
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
