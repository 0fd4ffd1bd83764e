"""The part that all calls of a run share: workers, limits of a call, storage of client states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raylfl.runtime.ray.traffic import Traffic
from raylfl.runtime.ray.worker_pool import WorkerPool
from raylfl.runtime.workers.task import Task


@dataclass(frozen=True)
class Channel:
    """Access to the workers of a run, with the settings of its calls.

    attempts: largest number of attempts at a task; timeout: seconds per call, None: no limit; keeps: whether clients
    have states; state_bytes: size of one state; spills: whether all states together are too large for the server's
    process.
    """

    pool: WorkerPool
    traffic: Traffic
    attempts: int
    timeout: float | None
    keeps: bool
    state_bytes: int
    spills: bool

    def home_of(self, task: Task) -> int | None:
        """The home of the task's client; None: any worker can do it. Tasks of pinned clients have one client."""
        stored = self.pool.stored
        return None if stored is None else stored.home_of(task.clients[0])

    @property
    def apart(self) -> bool:
        """Whether nodes may not see each other's uploads, because their clients' data live apart."""
        stored = self.pool.stored
        return stored is not None and stored.homes is not None and any(stored.homes.nodes)

    def stored(self, states: Sequence[Any]) -> list[Any]:
        """References to new client states. Small states are kept in this process, unless all of them would not fit."""
        if not self.spills:
            return list(states)
        self.traffic.given(states, self.traffic.here)
        return [ray.put(state) for state in ray.get(list(states))]
