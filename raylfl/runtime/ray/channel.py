"""The objects and settings that all calls of a run share: workers, limits of a call, storage of client states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raylfl.runtime.ray.traffic import Traffic
from raylfl.runtime.ray.worker_pool import WorkerPool
from raylfl.runtime.workers.backend import Handle
from raylfl.runtime.workers.state_store import HeldState
from raylfl.runtime.workers.task import Task


@dataclass(frozen=True)
class Channel:
    """Access to the workers of a run, with the settings of its calls.

    attempts: largest number of attempts at a task; timeout: seconds per call, None: no limit; keeps: whether clients
    have states; state_bytes: size of one state; spills: whether all states together are too large for the server's
    process; held: the name of the folders in which homes hold the states of their clients, None: states are sent.
    """

    pool: WorkerPool
    traffic: Traffic
    attempts: int
    timeout: float | None
    keeps: bool
    state_bytes: int
    spills: bool
    held: str | None = None

    def home_of(self, task: Task) -> int | None:
        """The home of the task's client; None: any worker can do the task. Tasks of pinned clients have one client."""
        stored = self.pool.stored
        return None if stored is None else stored.home_of(task.clients[0])

    @property
    def apart(self) -> bool:
        """Whether nodes may not see each other's uploads, because their clients' data live apart."""
        stored = self.pool.stored
        return stored is not None and stored.homes is not None and any(stored.homes.nodes)

    @property
    def returned(self) -> bool:
        """Whether calls return the new states of their clients."""
        return self.keeps and self.held is None

    def given(self, handles: Sequence[Handle | None]) -> tuple[list[int], list[Handle]]:
        """(`Work.known` of the clients with these states, the states that are arguments of the call).

        handles: one per client, None for a client without a state so far.
        """
        if self.held is not None:
            return [-1 if h is None else h.rounds for h in handles], []
        there = [h for h in handles if h is not None]
        place = iter(range(len(there)))
        return [-1 if h is None else next(place) for h in handles], there

    def left(self, task: Task) -> list[Handle]:
        """The handles of the states that the task's clients leave at their home; none if states are not held there."""
        return [HeldState(client, task.round + 1) for client in task.clients] if self.keeps and self.held else []

    def stored(self, states: Sequence[Any]) -> list[Any]:
        """References to new client states, which go to the object store if this process has no room (`spills`)."""
        if not self.spills:
            return list(states)
        self.traffic.given(states, self.traffic.here)
        return [ray.put(state) for state in ray.get(list(states))]
