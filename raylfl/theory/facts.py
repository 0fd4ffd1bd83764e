"""The quantities of a run that appear in theorems, and messages about assumptions that the run violates.

[1] to [4]: the papers listed in `raylfl.theory`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from raylfl.algorithms.fedacs import FedACS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.sfl import SFL
from raylfl.core.algorithm import ServerState, overrides
from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.core.draws import at_least_once
from raylfl.core.population import SystemInfo
from raylfl.diagnostics.surrogate import surrogate_weights
from raylfl.experiment.parts import Experiment
from raylfl.runtime.round.plan import Planner

LARGEST = 10**6  # largest product of rounds and clients with which the system of every round is computed
LOOKED_AT = 1000  # rounds whose expected draws are compared


@dataclass(frozen=True)
class Rounds:
    """The expected server weights and the local work of all clients in every round, [rounds, N] each.

    shares: E[c_i 1{i in R}] for the server step x - sum_i c_i U_i, where U_i is the update of client i and R the set of
    received clients. a_norm: |a_i|_1, where U_i = eta sum_k a_ik g_ik with learning rate eta and local gradients g_ik;
    for plain SGD it is the number of local steps K_i.
    """

    shares: Floats
    a_norm: Floats


@dataclass(frozen=True)
class Facts:
    """The quantities of a run that appear in theorems.

    system, steps, batch_sizes: the system state, local steps and samples per local step [N] of round 0. full: whether
    a client's local steps have its full gradient [N]. cohort: the configured cohort size, at most N; N if the server
    does not sample.

    takes_part: the probability that a client is sampled at least once and its upload is received [N]. None if
    unknown.

    with_replacement: whether a client can be drawn several times in a round.

    coefficients: E[c_i 1{i in R}], [N], up to a common factor, for the server step x - sum_i c_i U_i with client i's
    update U_i and the received clients R. None if unknown.

    over_rounds: the expectations E[c_i 1{i in R}] and the local work of every round. None unless they are known, sum_i
    c_i <= 1 and the surrogate weights of [3] are the same in every round.

    averages: whether the method is FedAvg or SFL and its new model is the mean of received models (no server learning
    rate).
    """

    system: SystemInfo
    steps: Ints
    batch_sizes: Ints
    full: Bools
    takes_part: Floats | None
    coefficients: Floats | None
    cohort: int
    with_replacement: bool
    over_rounds: Rounds | None
    averages: bool

    @property
    def surrogate(self) -> tuple[Floats, Floats] | None:
        """(shares, surrogate weights Omega of [3]), [N] each, sum 1; None if `coefficients` are unknown or all 0.

        The share of a client is its expected coefficient in the server step, divided by the sum over all clients.
        """
        c = self.coefficients
        return None if c is None or not c.any() else (c / c.sum(), surrogate_weights(c, self.system.a_norm))

    @property
    def tau(self) -> int:
        """The largest number of local steps of a client."""
        return int(self.steps.max())

    @property
    def equal_steps(self) -> bool:
        """Whether all clients take the same number of local steps."""
        return len(np.unique(self.steps)) == 1

    @property
    def even(self) -> bool:
        """Whether no upload is lost and clients are sampled and weighted as [2] (SFL) assumes.

        [2] assumes equal weights, and a fixed number of clients drawn uniformly without replacement.
        """
        p = self.takes_part
        if p is None or self.with_replacement or np.ptp(p) > 0:
            return False
        fixed = np.isclose(p.sum(), self.cohort, rtol=1e-9)  # the expected number of clients is also the largest
        return bool(fixed and not self.system.failure.any() and np.ptp(self.system.population.weights) == 0)


def facts_of(experiment: Experiment) -> Facts:
    """The quantities of a run that appear in theorems, computed before the cohort of round 0 is drawn."""
    planner = Planner(experiment)
    server = experiment.algorithm.init_server(torch.zeros(1), experiment.world.population)
    system = planner.system(0)
    steps, batch_sizes = planner.steps(0, planner.everyone)
    batch_sizes = batch_sizes * experiment.work.accumulate
    covered = batch_sizes >= experiment.world.population.sizes  # by samples that may repeat, if they are drawn
    full = covered & (experiment.setup.sampling == "reshuffle")
    marginals, law = planner.expected_draws(system, server)
    sampled = None if marginals is None else at_least_once(marginals, law)
    received = None if sampled is None else sampled * (1 - system.failure)
    expected = planner.expected_coefficients(system, server) if experiment.work_is_known else None
    cohort = min(system.size, experiment.world.count)
    rounds = None if expected is None else _over_rounds(experiment, planner, server)
    averages, repeated = _averages(experiment, bool(system.failure.any())), law == "with_replacement"
    return Facts(system, steps, batch_sizes, full, received, expected, cohort, repeated, rounds, averages)


def _averages(experiment: Experiment, losses: bool) -> bool:
    algorithm = experiment.algorithm
    if type(algorithm) is FedAvg:
        rule = algorithm.aggregate
        return algorithm.gamma == 1 and (rule in ("mean", "weighted") or (rule == "anonymous" and not losses))
    return isinstance(algorithm, SFL) and algorithm.gamma == 1


def _over_rounds(experiment: Experiment, planner: Planner, server: ServerState) -> Rounds | None:
    """The expected server weights and local work of every round; None if a condition of `Facts.over_rounds` fails.

    Known for FedAvg (and its subclasses) and FedACS, with gamma = 1 and without calibration and `estimate: ema`.
    """
    algorithm, count = experiment.algorithm, experiment.world.rounds
    if not isinstance(algorithm, (FedAvg, FedACS)) or algorithm.gamma != 1 or algorithm.calibrate:
        return None
    if isinstance(algorithm, FedACS) and algorithm.estimate != "known":
        return None
    rows: list[tuple[Floats, Floats]] = []
    for r in range(count if count * experiment.world.count <= LARGEST else 1):
        system = planner.system(r)
        shares = _shares(algorithm, planner, system, server)
        if shares is None:
            return None
        rows.append((shares, system.a_norm))
    if len(rows) < count and (experiment.work.varies or experiment.link.varies):
        return None
    shares, a_norm = (np.broadcast_to(np.array(part), (count, len(part[0]))) for part in zip(*rows, strict=True))
    omega = np.array([surrogate_weights(s, a) for s, a in rows])
    return Rounds(shares, a_norm) if np.allclose(omega, omega[0], rtol=1e-6, atol=0) else None


def _shares(algorithm: FedAvg | FedACS, planner: Planner, system: SystemInfo, server: ServerState) -> Floats | None:
    """Expected coefficients E[c_i 1{i in R}], [N], of a round's server step x - sum_i c_i U_i; R: the received clients.

    None if they are unknown or all 0, if the number of draws is random, or if sum_i c_i may exceed 1.
    """
    marginals, law = planner.expected_draws(system, server)
    independent = law == "independent"
    if marginals is None or (independent and (marginals % 1).any()):  # the size of the cohort is random
        return None
    expected = planner.expected_coefficients(system, server)
    if expected is None or not expected.any():
        return None
    if algorithm.aggregate == "anonymous":
        return np.asarray(expected if independent else expected / system.size)  # independent: divided by M already
    sure = not system.failure[expected > 0].any()
    return np.asarray(expected / expected.sum()) if algorithm.aggregate in ("mean", "weighted") and sure else None


def broken_assumptions(experiment: Experiment, facts: Facts) -> Iterator[str]:
    """Messages about properties of this run that violate assumptions of the theorems, and about missing quantities."""
    yield from violations(experiment, facts)
    if changes(experiment):
        yield "the system changes over the rounds: round 0 is used"
    if facts.coefficients is None and overrides(experiment.algorithm, "expected_coefficients"):
        yield "the expected weight or work of a client has no closed form here: no limit is predicted"
    if not facts.equal_steps:
        least = facts.steps.min()
        yield f"local steps differ between clients ({least} to {facts.tau}): [1] and [2] use the largest, [3] uses all"
    if isinstance(experiment.algorithm, (FedAvg, SFL)) and not (facts.averages and facts.even and facts.equal_steps):
        yield (
            "the bounds of [2] need gamma = 1, equal weights and local steps, no lost uploads, and a fixed number of "
            "clients drawn uniformly without replacement: they are left out"
        )


def violations(experiment: Experiment, facts: Facts) -> Iterator[str]:
    """Messages about properties of this run for which no theorem is proved, whatever its method."""
    yield from plain_sgd(experiment)
    if not experiment.participation.memoryless:
        yield "participation: the cohorts of different rounds depend on each other; in the theorems they do not"
    if not facts.full.all() and experiment.setup.sampling != "with_replacement":
        yield f"local.sampling={experiment.setup.sampling}: the theorems draw samples with replacement"


def changes(experiment: Experiment) -> bool:
    """Whether local work, links, or the expected draws of clients differ between rounds."""
    if experiment.work.varies or experiment.link.varies:
        return True
    world, first = experiment.world, experiment.participation.marginals(experiment.world, 0)
    if first is None:
        return False
    later = (experiment.participation.marginals(world, r) for r in range(1, min(world.rounds, LOOKED_AT)))
    return not all(row is not None and np.array_equal(row, first) for row in later)


def plain_sgd(experiment: Experiment) -> Iterator[str]:
    """Messages about options of this run that make its local step differ from plain SGD with a constant step size."""
    rule = experiment.rule
    if rule.momentum:
        yield "local.momentum: the theorems are about plain SGD"
    if rule.lr_schedule.name != "constant":
        yield "local.lr_schedule: the theorems have a constant step size; the first is taken"
    if rule.clip_norm is not None:
        yield "local.clip_norm: the theorems are about plain gradients"
    if experiment.setup.optimizer != "sgd":
        yield f"local.optimizer={experiment.setup.optimizer}: the theorems are about plain SGD with local.lr"
