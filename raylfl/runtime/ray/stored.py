"""A run's experiment in Ray's object store, and the samples of clients that are assigned to workers.

These samples are in the store only until their worker has read them. The process that has the data set puts them there
when a worker needs them, at the start or in place of a lost worker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import ray

from raylfl.core.arrays import Ints
from raylfl.core.placement import SHARED, Placement
from raylfl.core.samples import SampleSet
from raylfl.experiment.parts import Experiment, WorkerSetup
from raylfl.runtime.ray.resources import placement_of

PIECE = 64 * 2**20  # bytes of samples that are copied into the object store at a time


class StoredSamples(NamedTuple):
    """The samples of a worker in the object store: references to their pieces, in order, and the number of samples."""

    pieces: tuple[Any, ...]
    size: int

    def read(self) -> SampleSet:
        """The samples, read one piece at a time; several pieces are copied into this process."""
        return SampleSet.joined(map(ray.get, self.pieces), self.size)


class SamplesMissing(Exception):
    """Raised by a worker that lacks the samples, or the sums, of a call, because Ray has restarted it."""


@dataclass(frozen=True)
class StoredExperiment:
    """An experiment in Ray's object store, as an argument of calls of workers.

    experiment: a reference to the experiment, without the training samples of clients that are assigned to workers.
    sample_bytes: the bytes of these samples, 0 if workers read them by index.
    """

    experiment: Any
    placement: Placement = SHARED
    sample_bytes: int = 0

    @staticmethod
    def put(experiment: Experiment, workers: int) -> StoredExperiment:
        """Puts the experiment into the object store. workers: their number, among which assigned clients are divided.

        The split is left out: its arrays, one for each client, take seconds to read.
        """
        setup, split = experiment.setup, replace(experiment.split, clients=[])
        placement, experiment = placement_of(setup, workers), replace(experiment, split=split)
        if not setup.assigned:
            return StoredExperiment(ray.put(experiment), placement)
        nothing = setup.train.part(np.empty(0, dtype=np.int64))
        rest = replace(experiment, setup=replace(setup, train=nothing))
        return StoredExperiment(ray.put(rest), placement, setup.train.nbytes)

    @property
    def assigned(self) -> bool:
        """Whether clients are assigned to workers, which have only these clients' samples."""
        return self.placement.worker is not None

    def shared(self, assigned: int, samples: StoredSamples | None = None) -> list[Any]:
        """The first argument of a `WorkerActor` method: a list, in which Ray does not resolve references."""
        return [self.experiment, *((assigned, samples) if self.assigned else (None, None))]


def put_samples(setup: WorkerSetup, placement: Placement, worker: int) -> StoredSamples:
    """Puts the samples of the clients assigned to this worker into the object store, one part at a time."""
    indices = indices_of(setup, placement, worker)
    return StoredSamples(tuple(map(ray.put, setup.train.pieces(indices, PIECE))), len(indices))


def indices_of(setup: WorkerSetup, placement: Placement, worker: int) -> Ints:
    """The ascending indices of the training samples of this worker's clients; without any, of two for probe steps."""
    shards = [setup.shards[int(c)] for c in placement.clients(worker)]
    indices = np.sort(np.concatenate(shards)) if shards else setup.probe_samples
    return indices if len(indices) else setup.probe_samples
