"""The objects and settings of all calls of a run: the worker pool, limits of a call, storage of client states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.ray.worker_pool import WorkerPool
from raylfl.runtime.workers.backend import Handle
from raylfl.runtime.workers.task import Task


@dataclass(frozen=True)
class Channel:
    """Access to the workers of a run, with the settings of its calls.

    attempts: largest number of attempts at a task; timeout: seconds per call, None for no limit; keeps: whether clients
    keep a state between rounds; state_bytes: size of one client's state; spills: whether the states of all clients are
    too large for the server's memory; held: the name of the folders in which workers store the states of their clients,
    None if states are sent with the calls.
    """

    pool: WorkerPool
    traffic: TrafficCounter
    attempts: int
    timeout: float | None
    keeps: bool
    state_bytes: int
    spills: bool
    held: str | None = None

    def worker_of(self, task: Task) -> int | None:
        """The number of the worker that has the samples of a task's client.

        None if any worker can carry out the task. Tasks of clients that are assigned to workers have one client.
        """
        return self.pool.stored.placement.worker_of(task.clients[0])

    @property
    def nodes_apart(self) -> bool:
        """Whether cluster nodes must not receive each other's uploads (`Placement.nodes_apart`)."""
        return self.pool.stored.placement.nodes_apart

    @property
    def returns_states(self) -> bool:
        """Whether calls return the new states of their clients, instead of storing them on the worker."""
        return self.keeps and self.held is None

    def state_arguments(self, handles: Sequence[Handle | None]) -> tuple[list[int], list[Handle]]:
        """Prepares client states for a call; returns (`RunArguments.known` of the clients, the states to pass).

        handles: one per client, None for a client without a state so far.
        """
        if self.held is not None:
            return [-1 if h is None else h.rounds for h in handles], []
        there = [h for h in handles if h is not None]
        place = iter(range(len(there)))
        return [-1 if h is None else next(place) for h in handles], there

    def returned_states(self, states: Sequence[Any]) -> list[Any]:
        """References to new client states; if `spills`, the states are moved from this process to the object store."""
        if not self.spills:
            return list(states)
        self.traffic.count_arguments(states, self.traffic.here)
        return [ray.put(state) for state in ray.get(list(states))]
