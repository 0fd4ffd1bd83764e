"""The objects and settings of all calls of a run: the worker pool, limits of a call, storage of client states."""

import itertools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from raylfl.runtime.ray.actors import RunArguments
from raylfl.runtime.ray.group import WorkerGroup
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import CallInFlight, WorkerCall, WorkerLost, WorkerPool
from raylfl.runtime.workers.task import ClientReports, Task, TaskResult


@dataclass(frozen=True)
class Channel:
    """Access to the workers of a run, with the settings of its calls.

    attempts: at a task; timeout: seconds per call; keeps: whether clients keep a state between rounds; state_bytes: of
    one client; spills: whether the states of all clients are too large for the server's memory; group: exchanges sums
    between workers, None if they go through the object store.
    """

    pool: WorkerPool
    attempts: int
    timeout: float | None
    keeps: bool
    state_bytes: int
    spills: bool
    group: WorkerGroup | None = None

    def worker_of(self, task: Task) -> int | None:
        """The worker that has the samples of a task's only client; None if any worker can run the task."""
        return self.pool.stored.placement.worker_of(task.clients[0])

    def call(self, tasks: Sequence[Task], start: Any, separate: str | None = None, in_ring: bool = False) -> WorkerCall:
        """The call for the local work of some tasks, whose bytes are counted as sent.

        start: the packed broadcast or upload from which the tasks start, or a reference to it.
        """
        handles = [handle for task in tasks for handle in task.client_states]
        states, numbers = [handle for handle in handles if handle is not None], itertools.count()
        tasks = [
            replace(task, client_states=tuple(None if h is None else next(numbers) for h in task.client_states))
            for task in tasks
        ]
        self.pool.traffic.count(sent=weight(start) + len(states) * self.state_bytes)
        work = RunArguments(tasks, self.keeps, separate, in_ring)
        returns = 1 + (separate is not None) + self.keeps * len(handles)
        arguments = pickle.dumps(work, pickle.HIGHEST_PROTOCOL), start, *states
        return WorkerCall("run", arguments, returns, self.timeout, self.worker_of(tasks[0]))

    def results(self, tasks: Sequence[Task], sent: CallInFlight, answer: Any) -> tuple[list[TaskResult], list[Any]]:
        """The results of a call's tasks, whose new states are references, and a list of the separate value, if any.

        answer: the result of the call `sent` from the worker pool.
        """
        if isinstance(answer, WorkerLost):
            return [TaskResult(ClientReports.failed(task.clients, answer.reason)) for task in tasks], []
        results, *others = answer if sent.call.returns > 1 else [answer]
        count = self.keeps * sum(len(task.clients) for task in tasks)
        separate, states = others[: len(others) - count], others[len(others) - count :]
        self.pool.traffic.count(received=weight(results) + count * self.state_bytes)
        if self.spills:
            self.pool.traffic.count_arguments(states, self.pool.traffic.here)
            states = [ray.put(state) for state in ray.get(states)]
        if self.keeps:
            for task, result in zip(tasks, results, strict=True):
                result.client_states, states = states[: len(task.clients)], states[len(task.clients) :]
        return results, separate
