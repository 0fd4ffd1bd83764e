"""A run's experiment in Ray's object store; for pinned clients, the samples of each worker are separate objects."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray

from raylfl.core.assignment import Assignment
from raylfl.core.samples import SampleSet
from raylfl.experiment.parts import Experiment, WorkerSetup
from raylfl.runtime.ray.resources import assignment_of


@dataclass(frozen=True)
class StoredExperiment:
    """References to an experiment in Ray's object store, as arguments of calls of workers.

    experiment: a reference to the experiment, without training samples if clients are pinned. assignment: the worker of
    each pinned client, None if clients are not pinned. samples: for each worker, a reference to the training samples of
    its pinned clients; samples that are read by index are stored as indices. key: a random name of this object.
    """

    experiment: Any
    assignment: Assignment | None = None
    samples: tuple[Any, ...] = ()
    key: str = field(default_factory=lambda: secrets.token_hex(8))

    @staticmethod
    def put(experiment: Experiment, workers: int) -> StoredExperiment:
        """Puts the experiment into the object store.

        workers: the number of workers, among which pinned clients are divided.
        """
        setup, assignment = experiment.setup, assignment_of(experiment.setup, workers)
        if assignment is None:
            return StoredExperiment(ray.put(experiment))
        nothing = setup.train.part(np.empty(0, dtype=np.int64))
        rest = replace(experiment, setup=replace(setup, train=nothing))
        samples = tuple(ray.put(samples_of(setup, assignment, w)) for w in range(workers))
        return StoredExperiment(ray.put(rest), assignment, samples)

    def shared(self, assigned: int) -> list[Any]:
        """The first argument `shared` of a `WorkerActor` method: a list, in which Ray does not resolve references.

        assigned: the number of the worker to which the call's clients are assigned; ignored if clients are not pinned.
        """
        pinned = (None, None) if self.assignment is None else (assigned, self.samples[assigned])
        return [self.experiment, *pinned]

    def worker_of(self, client: int | None) -> int | None:
        """The number of the worker to which a client is assigned; None if any worker can do the client's work.

        client: None for work on samples of several clients.
        """
        return None if self.assignment is None or client is None else int(self.assignment.worker[client])


def samples_of(setup: WorkerSetup, assignment: Assignment, worker: int) -> SampleSet:
    """The training samples of the clients assigned to this worker; if there are none, two samples for trial steps."""
    shards = [setup.shards[int(c)] for c in assignment.clients(worker)]
    own = np.sort(np.concatenate(shards)) if shards else setup.trial
    return setup.train.part(own if len(own) else setup.trial)
