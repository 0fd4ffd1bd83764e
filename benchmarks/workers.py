"""Many workers: what one round costs the process of the round loop, with stand-ins for Ray and its actors.

Two hundred processes that import torch do not fit on the machine of these pages. Ray's own time per call is left out.
"""

import pickle
import time
from collections.abc import Mapping, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.pages import table
from raylfl.runtime.ray import worker_pool
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.cohort import CohortInFlight
from raylfl.runtime.ray.stored import StoredExperiment
from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.ray.worker_pool import WorkerPool
from raylfl.runtime.workers.task import ClientReports, Task, TaskResult

WORKERS = (2, 20, 200)
CLIENTS, ROUNDS = 4, 30  # clients of each worker in a round


class Reference:
    """A stand-in for a reference: what it refers to."""

    def __init__(self, value: Any):
        self.value = value


class Ray:
    """A stand-in for Ray, whose results are ready at once; counts calls of `wait` and references passed to it."""

    def __init__(self) -> None:
        self.calls = self.references = 0

    def wait(self, references: list[Any], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Any], Any]:
        self.calls, self.references = self.calls + 1, self.references + len(references)
        return references[:num_returns], references[num_returns:]

    def get(self, reference: Any) -> Any:
        return reference.value


class Actor:
    """A stand-in for a worker actor, which sends reports without uploads."""

    def __init__(self) -> None:
        ping = SimpleNamespace(remote=lambda shared: Reference("node"))
        self.ping = SimpleNamespace(options=lambda max_task_retries: ping)
        self.run = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=self.work))

    def work(self, shared: Any, work: bytes, start: Any) -> Reference:
        return Reference([TaskResult(ClientReports.of(task.clients)) for task in pickle.loads(work)[0]])


def round_of(workers: int) -> dict[str, Any]:
    """The calls of `ray.wait` in a round of this many workers, its references, and the round loop's time for them."""
    ray = Ray()
    with mock.patch.object(worker_pool, "ray", ray):
        actors = [Actor() for _ in range(workers)]
        pool = WorkerPool(actors, StoredExperiment(None), print, TrafficCounter())
        channel = Channel(pool, 1, None, False, 0, False)
        tasks = [Task(0, (k,), (5,), (20,), (5.0,), 0.1, None, (None,)) for k in range(CLIENTS * workers)]
        seconds = []
        for _ in range(ROUNDS):
            ray.calls = ray.references = 0
            started = time.process_time()
            done = CohortInFlight(channel, tasks, {"x": np.zeros(10, np.float32)}).results()
            seconds.append(time.process_time() - started)
            assert len(done) == len(tasks)
    return {"workers": workers, "calls": ray.calls, "references": ray.references, "round_ms": 1e3 * median(seconds)}


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The part `workers` of docs/measurements.md."""
    cells = [
        {
            "workers": f"{row['workers']:,}",
            "calls of `ray.wait`": row["calls"],
            "references in them": f"{row['references']:,}",
            "processor time": f"{row['round_ms']:.2g} ms",
            "per worker": f"{1e3 * row['round_ms'] / row['workers']:.0f} us",
        }
        for row in rows
    ]
    return f"\n{table(cells)}\n"
