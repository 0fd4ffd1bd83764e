"""The quantities of a run that appear in theorems, and the assumptions that the run violates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from raylfl.core.algorithm import overrides
from raylfl.core.population import Floats, Ints, SystemInfo
from raylfl.parts import Experiment
from raylfl.runtime.round.plan import Planner


@dataclass(frozen=True)
class Facts:
    """The quantities of a run that appear in theorems; takes_part: the probability of each client's upload, [N]."""

    system: SystemInfo
    steps: Ints
    batch_sizes: Ints
    takes_part: Floats | None
    coefficients: Floats | None
    cohort: int

    @property
    def tau(self) -> int:
        """The largest number of local steps of a client."""
        return int(self.steps.max())


def facts_of(experiment: Experiment) -> Facts:
    """The facts of round 0, before its cohort is drawn."""
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


def broken_assumptions(experiment: Experiment, facts: Facts) -> Iterator[str]:
    """The properties of this run that the theorems exclude."""
    yield from plain_sgd(experiment)
    if experiment.config.local.dynamic or getattr(experiment.link, "dynamic", False):
        yield "the system changes over the rounds: that of round 0 is taken"
    if facts.coefficients is None and overrides(experiment.algorithm, "expected_coefficients"):
        yield "the expected weight of a client has no closed form here: no limit is predicted"
    if len(np.unique(facts.steps)) > 1:
        yield f"local steps differ between clients ({facts.steps.min()} to {facts.tau}): the largest is taken"
    full = (facts.batch_sizes >= experiment.setup.population.sizes).all()
    if not full and experiment.setup.sampling != "with_replacement":
        yield f"local.sampling={experiment.setup.sampling}: the theorems draw samples with replacement"


def plain_sgd(experiment: Experiment) -> Iterator[str]:
    """The options by which the local step is not plain SGD with one step size."""
    rule = experiment.rule
    if rule.momentum:
        yield "local.momentum: the theorems are about plain SGD"
    if rule.lr_schedule.name != "constant":
        yield "local.lr_schedule: the theorems have a constant step size; the first is taken"
    if rule.clip_norm is not None:
        yield "local.clip_norm: the theorems are about plain gradients"
    if experiment.setup.optimizer != "sgd":
        yield f"local.optimizer={experiment.setup.optimizer}: the theorems are about plain SGD with local.lr"
