"""The backend interface between the round loop and workers, and its implementation in the calling process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import Algorithm, State
from raylfl.core.cut import Cut
from raylfl.core.deferred import Deferred
from raylfl.core.oracle import private_randomness
from raylfl.errors import RaylflError
from raylfl.parts import Initial, WorkerSetup
from raylfl.runtime.stopping import time_limit
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.nodes import OPERATIONS, Site, WorkReport
from raylfl.runtime.workers.task import Chunk, ClientReports, Task, TaskResult, add_up
from raylfl.runtime.workers.worker import Worker
from raylfl.startup import collector

T = TypeVar("T")
Handle = Any  # a client state or broadcast: the tensors themselves, or a reference to them


@dataclass(frozen=True)
class HomeCall:
    """A call for a block of nodes at its home: an operation of `raylfl.runtime.workers.nodes` and its arguments.

    home: the number of the block; job: the operation's first argument; handles: handles of the states that are its
    other arguments; returns: the number of results, which are a value and handles of states; arriving: (home, bytes) of
    messages from other blocks.
    """

    home: int
    operation: str
    job: Any
    handles: tuple[Handle, ...]
    returns: int
    arriving: tuple[tuple[int, int], ...] = ()

    def failed(self, reason: str) -> list[Any]:
        """The result of local work whose worker was lost in every attempt."""
        clients = [client for task in self.job.tasks for client in task.clients]
        return [
            WorkReport(ClientReports.failed(clients, reason), {}, 0, ()),
            {},
            *({} for _ in range(self.returns - 2)),
        ]


class Executor(ABC):
    """The interface for carrying out local work. Client states are handles, so that only requested states are sent.

    Each call returns a `Deferred` at once. The work may start then or when the result is awaited, depending on the
    backend.
    """

    @abstractmethod
    def initial(self) -> Initial:
        """The initial parameters and buffers of the module, and the initial state of the local optimizer."""

    one_by_one: str | None
    """The reason why workers run clients one by one; None: a micro-cohort runs in one vectorised call."""

    shared_memory: bool = False
    """Whether all handles are tensors of this process, so that passing a whole state costs no more than a part."""

    @abstractmethod
    def put(self, state: State) -> Handle:
        """A handle to these tensors, for a broadcast or a client state."""

    @abstractmethod
    def get(self, handles: Sequence[Handle]) -> list[State]:
        """The tensors behind the handles, read-only."""

    @abstractmethod
    def run(
        self, tasks: Sequence[Task], broadcast: State, client_states: Sequence[Sequence[Handle | None]]
    ) -> Deferred[list[TaskResult]]:
        """Runs the tasks; returns their results in task order.

        client_states: for each task, handles of its clients' states; None for a client without a state so far. A task
        that keeps failing has `errors` in its reports and no uploads.
        """

    @abstractmethod
    def run_ring(
        self,
        tasks: Sequence[Task],
        broadcast: State,
        client_states: Sequence[Sequence[Handle | None]],
        received: Sequence[bool],
    ) -> Deferred[list[TaskResult]]:
        """Runs the tasks of a ring, of one client each; returns their results in task order.

        Each task starts from the last received upload. received: whether each task's upload is received. Only the last
        received upload reaches the server; the others are sent from worker to worker.
        """

    def for_all(self, broadcast: State) -> Handle:
        """A handle of a broadcast that is an argument of many calls."""
        return self.put(broadcast)

    @abstractmethod
    def at_homes(self, calls: Sequence[HomeCall]) -> Deferred[list[Any]]:
        """Carries out calls for blocks of nodes; the result of each is [a value, *handles of states]."""

    def traffic(self) -> dict[str, int]:
        """Bytes sent between processes since the last call, as metrics; no metrics for a single process."""
        return {"traffic/sent_bytes": 0, "traffic/received_bytes": 0, "traffic/between_nodes_bytes": 0}


class Backend(Executor):
    """The interface for carrying out local work and evaluations."""

    workers: int
    cut: Cut | None
    """What passes the cut of a split model; None: the model is not split."""
    whole: frozenset[str]
    """Kinds of data that a single worker evaluates, because the module has hooks on a whole evaluation."""

    @abstractmethod
    def evaluate(self, broadcast: State, chunks: Sequence[Chunk]) -> Deferred[list[Logged]]:
        """Evaluates the broadcast model on each chunk; returns the values that the module logs, chunk by chunk."""

    @abstractmethod
    def objective(self, broadcast: State, groups: Sequence[Sequence[int]]) -> Deferred[list[tuple[float, Tensor]]]:
        """(sum w_i f_i(x), sum w_i grad f_i(x) [d]) over the clients of each group, in the order of the groups."""

    @abstractmethod
    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's state_dict at these parameters [d] and buffers [b]."""

    def describe(self) -> dict[str, Any]:
        """The entries of summary.json about where the run was carried out."""
        return {"backend": type(self).__name__, "workers": self.workers}

    def put_states(self, states: Mapping[int, State], rounds: int) -> dict[int, Handle]:
        """Handles of these client states, which are the states after `rounds` rounds."""
        return {client: self.put(state) for client, state in states.items()}

    def load_states(self, path: Path, clients: set[int], rounds: int) -> dict[int, Handle] | None:
        """Handles of the states of these clients in a file of a checkpoint, which are the states after `rounds` rounds.

        None: workers do not read the file, and the caller must.
        """
        return None

    def write_states(self, handles: Sequence[Handle], folder: Path) -> dict[str, str] | None:
        """Makes workers write client states into a checkpoint's folder; returns the sha256 of each file.

        None: workers hold no states, and the caller must write them.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Releases all resources. Safe to call twice."""


class InProcess(Executor):
    """Local work in the calling process, carried out when its result is awaited."""

    algorithm: Algorithm
    shared_memory = True

    @abstractmethod
    def attempt(self, task: Task, broadcast: State, client_states: Sequence[Handle | None]) -> TaskResult:
        """The result of one task; if all attempts fail, its reports have `errors`."""

    def put(self, state: State) -> Handle:
        return state

    def get(self, handles: Sequence[Handle]) -> list[State]:
        return list(handles)

    def run(
        self, tasks: Sequence[Task], broadcast: State, client_states: Sequence[Sequence[Handle | None]]
    ) -> Deferred[list[TaskResult]]:
        def results() -> list[TaskResult]:
            with private_randomness():  # keeps the caller's generators
                done = [
                    self.attempt(task, broadcast, states) for task, states in zip(tasks, client_states, strict=True)
                ]
            add_up(done)
            return done

        return Deferred(results)

    def run_ring(
        self,
        tasks: Sequence[Task],
        broadcast: State,
        client_states: Sequence[Sequence[Handle | None]],
        received: Sequence[bool],
    ) -> Deferred[list[TaskResult]]:
        def results() -> list[TaskResult]:
            done: list[TaskResult] = []
            last: TaskResult | None = None  # the last received result
            start = broadcast
            with private_randomness():
                for task, states, arrives in zip(tasks, client_states, received, strict=True):
                    result = self.attempt(task, start, states)
                    done.append(replace(result, uploads={}))
                    if arrives and not len(result.reports.bad):
                        last, start = replace(done[-1], uploads=result.uploads), first_row(result.uploads)
            return [last if last is not None and result.task is last.task else result for result in done]

        return Deferred(results)

    def at_homes(self, calls: Sequence[HomeCall]) -> Deferred[list[Any]]:
        assert isinstance(self.algorithm, GraphAlgorithm)
        site = Site(self.algorithm, self.attempt)

        def results() -> list[Any]:
            with private_randomness():
                return [OPERATIONS[call.operation](site, call.job, *call.handles) for call in calls]

        return Deferred(results)


class LocalBackend(InProcess, Backend):
    """A worker in the calling process, for debugging, tests, and models too small for actors."""

    workers = 1

    def __init__(self, setup: WorkerSetup):
        self._threads = torch.get_num_threads()
        self.worker = Worker(setup)
        self.algorithm = self.worker.algorithm
        collector.as_usual()
        self.attempts, self.timeout = 1 + setup.runtime.client_retries, setup.runtime.client_timeout
        self.one_by_one, self.whole, self.cut = self.worker.one_by_one, self.worker.whole, self.worker.cut
        self._batch_size = setup.eval_batch_size

    def initial(self) -> Initial:
        return self.worker.initial

    def attempt(self, task: Task, broadcast: State, client_states: Sequence[Handle | None]) -> TaskResult:
        outcome = TaskResult(task, ClientReports.of(()))
        for _ in range(self.attempts):
            try:
                with time_limit(self.timeout):
                    outcome = TaskResult(task, *self.worker.run(task, broadcast, client_states))
            except TimeoutError as error:  # raised where the worker does not handle it
                outcome = TaskResult(task, ClientReports.failed(task.clients, str(error)))
            if not outcome.failed:
                break
        return outcome

    def evaluate(self, broadcast: State, chunks: Sequence[Chunk]) -> Deferred[list[Logged]]:
        measure = partial(self.worker.evaluate, broadcast, chunks)
        return Deferred(lambda: self._within(self._batches(chunks), measure))

    def objective(self, broadcast: State, groups: Sequence[Sequence[int]]) -> Deferred[list[tuple[float, Tensor]]]:
        return Deferred(lambda: self._within(len(groups), partial(self.worker.objective, broadcast, groups)))

    def _batches(self, chunks: Sequence[Chunk]) -> int:
        return sum(-(-len(chunk.indices) // self._batch_size) for chunk in chunks)

    def _within(self, items: int, measure: Callable[[], T]) -> T:
        """The result of `measure`. Raises RaylflError if it takes longer than `client_timeout` for each item."""
        try:
            with time_limit(patience(self.timeout, items)):
                return measure()
        except TimeoutError as error:
            raise RaylflError(f"evaluation: {error}") from error

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        return self.worker.state_dict(x, buffers)

    def close(self) -> None:
        torch.set_num_threads(self._threads)


def patience(timeout: float | None, items: int) -> float | None:
    """The time limit in seconds of a call that measures `items` batches or groups of clients; timeout: of one item."""
    return None if timeout is None else timeout * max(items, 1)


def first_row(uploads: State) -> State:
    """One client's upload (rows [1, ...]) as the broadcast for the next client of the ring."""
    return {name: rows[0] for name, rows in uploads.items()}
