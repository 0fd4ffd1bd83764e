"""A run's experiment in Ray's object store; samples of clients that are assigned to workers are separate objects."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray

from raylfl.core.placement import SHARED, Placement
from raylfl.core.samples import SampleSet
from raylfl.experiment.parts import Experiment, WorkerSetup
from raylfl.runtime.ray.resources import placement_of


@dataclass(frozen=True)
class StoredExperiment:
    """References to an experiment in Ray's object store, as arguments of calls of workers.

    experiment: a reference to the experiment, without the training samples of clients that are assigned to workers.
    samples: for each worker, a reference to the training samples of its assigned clients; samples that are read by
    index are stored as indices; empty if clients are not assigned. key: a random name of this object.
    """

    experiment: Any
    placement: Placement = SHARED
    samples: tuple[Any, ...] = ()
    key: str = field(default_factory=lambda: secrets.token_hex(8))

    @staticmethod
    def put(experiment: Experiment, workers: int) -> StoredExperiment:
        """Puts the experiment into the object store.

        workers: the number of workers, among which clients that are assigned to workers are divided.
        """
        setup = experiment.setup
        placement = placement_of(setup, workers)
        if not setup.assigned:
            return StoredExperiment(ray.put(experiment), placement)
        nothing = setup.train.part(np.empty(0, dtype=np.int64))
        rest = replace(experiment, setup=replace(setup, train=nothing))
        samples = tuple(ray.put(samples_of(setup, placement, w)) for w in range(workers))
        return StoredExperiment(ray.put(rest), placement, samples)

    def shared(self, assigned: int) -> list[Any]:
        """The first argument `shared` of a `WorkerActor` method: a list, in which Ray does not resolve references.

        assigned: the number of the worker to which the call's clients are assigned; ignored if clients are not.
        """
        return [self.experiment, *((assigned, self.samples[assigned]) if self.samples else (None, None))]


def samples_of(setup: WorkerSetup, placement: Placement, worker: int) -> SampleSet:
    """The training samples of the clients assigned to this worker; if there are none, two samples for trial steps."""
    shards = [setup.shards[int(c)] for c in placement.clients(worker)]
    own = np.sort(np.concatenate(shards)) if shards else setup.trial
    return setup.train.part(own if len(own) else setup.trial)
