"""Where the local work of a cohort is carried out: here or on actors. The round loop knows only this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms.base import State
from raylfl.core.oracle import private_randomness
from raylfl.core.population import Ints
from raylfl.runtime.stopping import time_limit
from raylfl.runtime.task import Outcome, Report, Task, WorkerSetup
from raylfl.runtime.worker import Worker

Handle = Any  # of a client's state or a broadcast: the tensors themselves, or a reference to them


class Backend(ABC):
    """Carries out tasks. Client states stay behind handles, so that only those that are asked for travel."""

    workers: int

    @abstractmethod
    def initial(self) -> tuple[Tensor, Tensor]:
        """(x [d], buffers [b]) of the freshly made module."""

    one_by_one: str | None
    """Why workers take clients one by one; None: a micro-cohort in one vectorised call."""

    @abstractmethod
    def put(self, state: State) -> Handle:
        """A handle to these tensors, for a broadcast or a client's state."""

    @abstractmethod
    def get(self, handles: Sequence[Handle]) -> list[State]:
        """The tensors behind handles; read-only."""

    @abstractmethod
    def run(self, tasks: Sequence[Task], down: State, own: Sequence[Sequence[Handle | None]]) -> list[Outcome]:
        """The outcomes in task order. A task that keeps failing has reports with `error` and no rows."""

    @abstractmethod
    def run_ring(
        self, tasks: Sequence[Task], down: State, own: Sequence[Sequence[Handle | None]], arrives: Sequence[bool]
    ) -> tuple[list[Outcome], State]:
        """One client a task, each starting from the last upload that arrived; (outcomes, that last upload).

        Only the last upload comes to the server; the others pass from worker to worker. Outcomes carry no `up`,
        except for its widths: see `Outcome.up_floats`.
        """

    @abstractmethod
    def evaluate(self, down: State, chunks: Sequence[tuple[str, Ints]]) -> list[dict[str, float]]:
        """Mean metrics of each chunk, in order."""

    @abstractmethod
    def objective(self, down: State, groups: Sequence[Sequence[int]]) -> list[tuple[float, Tensor]]:
        """Loss and gradient of F restricted to each group of clients, in order."""

    @abstractmethod
    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's state_dict at these parameters."""

    def describe(self) -> dict[str, Any]:
        """What summary.json says about where the run ran."""
        return {"backend": type(self).__name__, "workers": self.workers}

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Safe to call twice."""


class LocalBackend(Backend):
    """The same worker class in the calling process: for debugging, and for tests."""

    workers = 1

    def __init__(self, setup: WorkerSetup):
        self._threads = torch.get_num_threads()
        self.worker = Worker(setup)
        self.attempts, self.timeout = 1 + setup.runtime.client_retries, setup.runtime.client_timeout
        self.one_by_one = self.worker.one_by_one

    def initial(self) -> tuple[Tensor, Tensor]:
        return self.worker.x0.cpu(), self.worker.buffers0.cpu()

    def put(self, state: State) -> Handle:
        return state

    def get(self, handles: Sequence[Handle]) -> list[State]:
        return list(handles)

    def run(self, tasks: Sequence[Task], down: State, own: Sequence[Sequence[Handle | None]]) -> list[Outcome]:
        with private_randomness():  # the caller's process
            return [self._attempt(task, down, states) for task, states in zip(tasks, own, strict=True)]

    def _attempt(self, task: Task, down: State, own: Sequence[Handle | None]) -> Outcome:
        outcome = Outcome(task, [])
        for _ in range(self.attempts):
            try:
                with time_limit(self.timeout):
                    outcome = Outcome(task, *self.worker.run(task, down, own))
            except TimeoutError as error:  # it struck between the worker's own lines
                outcome = Outcome(task, [Report(c, np.nan, np.nan, 0, error=str(error)) for c in task.clients])
            if not outcome.failed:
                break
        return outcome

    def run_ring(
        self, tasks: Sequence[Task], down: State, own: Sequence[Sequence[Handle | None]], arrives: Sequence[bool]
    ) -> tuple[list[Outcome], State]:
        with private_randomness():
            return self._run_ring(tasks, down, own, arrives)

    def _run_ring(
        self, tasks: Sequence[Task], down: State, own: Sequence[Sequence[Handle | None]], arrives: Sequence[bool]
    ) -> tuple[list[Outcome], State]:
        outcomes, last = [], {}
        for task, states, arrived in zip(tasks, own, arrives, strict=True):
            outcome = self._attempt(task, down, states)
            usable = not outcome.failed and all(r.finite for r in outcome.reports)
            if arrived and usable:
                last, down = outcome.up, first_row(outcome.up)
            outcomes.append(Outcome(task, outcome.reports, {}, outcome.own))
        return outcomes, last

    def evaluate(self, down: State, chunks: Sequence[tuple[str, Ints]]) -> list[dict[str, float]]:
        return self.worker.evaluate(down, chunks)

    def objective(self, down: State, groups: Sequence[Sequence[int]]) -> list[tuple[float, Tensor]]:
        return self.worker.objective(down, groups)

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        return self.worker.state_dict(x, buffers)

    def close(self) -> None:
        torch.set_num_threads(self._threads)


def first_row(up: State) -> State:
    """One client's upload (rows [1, ...]) as the broadcast that the next in the ring starts from."""
    return {name: rows[0] for name, rows in up.items()}
