"""The interface between the round loop and workers (`Backend`), and an implementation in the calling process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from raylfl.core.algorithm import Algorithm, State
from raylfl.core.cut import Cut
from raylfl.core.deferred import Deferred
from raylfl.core.oracle import private_randomness
from raylfl.errors import RaylflError
from raylfl.experiment.parts import Initial, WorkerSetup
from raylfl.runtime.stopping import time_limit
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.nodes import OPERATIONS, WorkReport
from raylfl.runtime.workers.task import Chunk, ClientReports, ClientStates, Room, Task, TaskResult, added_up
from raylfl.runtime.workers.worker import Worker

T = TypeVar("T")
Handle = Any  # a client state or broadcast: the tensors themselves, or a reference to them


@dataclass(frozen=True)
class BlockCall:
    """A call for a block of nodes of a graph, sent to the same worker in every round.

    operation: a key of `raylfl.runtime.workers.nodes.OPERATIONS`; job, handles: its arguments after the runner, the
    last of which are states; returns: the number of results, a value and handles of states; arriving: (number of the
    sending block, bytes) for the messages from each other block.
    """

    block: int
    operation: str
    job: Any
    handles: tuple[Handle, ...]
    returns: int
    arriving: tuple[tuple[int, int], ...] = ()

    def failed(self, reason: str) -> list[Any]:
        """The result of a call for local work whose worker was lost in every attempt: failed reports, empty states."""
        clients = [client for task in self.job.tasks for client in task.clients]
        report = WorkReport(TaskResult(ClientReports.failed(clients, reason)), 0, ())
        return [report, *({} for _ in range(self.returns - 1))]


class Executor(ABC):
    """The interface for carrying out local work.

    Client states are passed as handles, so that a state is sent only to the process that uses it. The work of a
    `Deferred` starts at once or when the result is awaited.

    one_by_one: the reason why workers run clients one by one; None if several clients run in one vectorised call.
    device_name: of the device on which a worker computes. room: what a worker's GPU has room for; None if workers run
    on CPUs. server_device: the GPU on which sums of uploads and the server's vectors can stay; None: they are on the
    host. shared_memory: whether all handles are tensors of this process, so that passing a state copies nothing.
    """

    one_by_one: str | None
    device_name: str = "cpu"
    room: Room | None = None
    server_device: torch.device | None = None
    shared_memory: bool = False

    @abstractmethod
    def initial(self) -> Initial:
        """The initial parameters and buffers of the module, and the initial state of the local optimizer."""

    @abstractmethod
    def put(self, state: State) -> Handle:
        """A handle of these tensors, for use as a broadcast or a client state."""

    @abstractmethod
    def get(self, handles: Sequence[Handle]) -> list[State]:
        """The states of these handles, as tensors that must not be written."""

    @abstractmethod
    def run(self, tasks: Sequence[Task], broadcast: State) -> Deferred[list[TaskResult]]:
        """The results of the tasks, in order, and possibly results without clients, which have partial sums.

        A task that fails in every attempt has `errors` in its reports and no uploads.
        """

    @abstractmethod
    def run_ring(self, tasks: Sequence[Task], broadcast: State) -> Deferred[list[TaskResult]]:
        """The results of the tasks of a ring, of one client each, in order.

        Each task starts from the newest received upload before it, or from the broadcast if there is none. Uploads of
        clients that failed or returned non-finite values are dropped. Only the last one received reaches the server.
        """

    def shared_broadcast(self, broadcast: State) -> Handle:
        """A handle of a broadcast that many calls have as an argument."""
        return self.put(broadcast)

    @abstractmethod
    def run_blocks(self, calls: Sequence[BlockCall]) -> Deferred[list[Any]]:
        """Runs calls for blocks of nodes; returns [a value, *handles of states] for each call."""

    def traffic(self) -> dict[str, int]:
        """The bytes sent between processes since the last call of this method, as metrics; 0 in a single process."""
        return {"traffic/sent_bytes": 0, "traffic/received_bytes": 0, "traffic/between_nodes_bytes": 0}


class Backend(Executor):
    """The interface for carrying out local work and evaluations.

    workers: the number of workers. cut: the client's half of a split model and the traffic at its cut; None if the
    model is not split. whole: kinds of data (test, val, train) that one worker evaluates alone, because of the module's
    evaluation hooks.
    """

    workers: int
    cut: Cut | None
    whole: frozenset[str]

    @abstractmethod
    def evaluate(self, broadcast: State, chunks: Sequence[Chunk]) -> Deferred[list[Logged]]:
        """Evaluates the broadcast model; returns the values that the module logs over each chunk."""

    @abstractmethod
    def objective(self, broadcast: State, groups: Sequence[Sequence[int]]) -> Deferred[list[tuple[float, Tensor]]]:
        """For each group of clients i: (sum w_i f_i(x), sum w_i grad f_i(x) [d]).

        x: the broadcast model; w_i: importance weights; f_i: mean loss over all samples of client i.
        """

    @abstractmethod
    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's state_dict at these parameters [d] and buffers [b]."""

    def location(self) -> str | None:
        """Where clients, data and server are, as a sentence for the user; None if they are in this process on a CPU."""
        return None

    def describe(self) -> dict[str, Any]:
        """The entry `runtime` of summary.json, such as the number of workers."""
        return {"backend": type(self).__name__, "workers": self.workers, "device": self.device_name}


class InProcess(Executor):
    """An executor that runs local work in the calling process when the result is awaited."""

    algorithm: Algorithm
    shared_memory = True

    @abstractmethod
    def attempt(self, task: Task, broadcast: State, client_states: ClientStates) -> TaskResult:
        """Runs one task; if all attempts fail, the reports of its result have `errors`."""

    def put(self, state: State) -> Handle:
        return state

    def get(self, handles: Sequence[Handle]) -> list[State]:
        return list(handles)

    def run(self, tasks: Sequence[Task], broadcast: State) -> Deferred[list[TaskResult]]:
        begun = self.begin(tasks[0], broadcast) if tasks else None
        rest = tasks if begun is None else tasks[1:]

        def results() -> list[TaskResult]:
            first = [begun.result()] if begun is not None else []
            with private_randomness() if rest else nullcontext():  # keeps the caller's generators
                done = (self.attempt(task, broadcast, task.client_states) for task in rest)
                stay = self.server_device is not None
                return added_up(chain(first, done), tasks[0].sums if tasks else None, stay)

        return Deferred(results)

    def begin(self, task: Task, broadcast: State) -> Deferred[TaskResult] | None:
        """The result of a task that a device has begun to compute while the host continues; None without a device."""
        return None

    def run_ring(self, tasks: Sequence[Task], broadcast: State) -> Deferred[list[TaskResult]]:
        def results() -> list[TaskResult]:
            done, start, last = list[TaskResult](), broadcast, TaskResult(ClientReports.of([]))
            with private_randomness():
                for task in tasks:
                    result = self.attempt(task, start, task.client_states)
                    done.append(result)
                    if all(task.received) and not len(result.reports.bad):
                        last.uploads, last, start = {}, result, first_row(result.uploads)
                    else:
                        result.uploads = {}
            return done

        return Deferred(results)

    def run_blocks(self, calls: Sequence[BlockCall]) -> Deferred[list[Any]]:
        def results() -> list[Any]:
            with private_randomness():
                found = [OPERATIONS[call.operation](self, call.job, *call.handles) for call in calls]
            assert [len(result) for result in found] == [call.returns for call in calls]  # Ray divides results by it
            return found

        return Deferred(results)


class LocalBackend(InProcess, Backend):
    """A backend of one worker in the calling process, for debugging, tests, and models too small for actors."""

    workers = 1

    def __init__(self, setup: WorkerSetup):
        self._threads = torch.get_num_threads()
        self.worker = Worker(setup)
        self.algorithm = self.worker.algorithm
        self.timeout = setup.runtime.client_timeout
        self.one_by_one, self.whole, self.cut = self.worker.forms.one_by_one, self.worker.whole, self.worker.cut
        self.room, self.device_name = self.worker.forms.room, self.worker.device_name
        self._batch_size = setup.eval_batch_size
        if self.worker.forms.computes_alone and setup.runtime.step != "autograd":
            self.server_device = self.worker.device

    def initial(self) -> Initial:
        return self.worker.initial

    def attempt(self, task: Task, broadcast: State, client_states: ClientStates) -> TaskResult:
        return self.worker.attempt(task, broadcast, client_states, self.timeout)

    def begin(self, task: Task, broadcast: State) -> Deferred[TaskResult] | None:
        if self.timeout is not None or not self.worker.forms.computes_alone:
            return None
        return self.worker.begin(task, broadcast, task.client_states)

    def location(self) -> str | None:
        if (processes := self.worker.flat.processes) > 1:
            return f"clients, data and server in this process; the model is sharded over {processes} processes"
        if self.worker.device.type == "cpu":
            return None
        return f"clients, data and server in this process, local steps on a GPU ({self.device_name})"

    def evaluate(self, broadcast: State, chunks: Sequence[Chunk]) -> Deferred[list[Logged]]:
        batches = sum(chunk.batches(self._batch_size) for chunk in chunks)
        return Deferred(lambda: self._within(batches, partial(self.worker.evaluate, broadcast, chunks)))

    def objective(self, broadcast: State, groups: Sequence[Sequence[int]]) -> Deferred[list[tuple[float, Tensor]]]:
        return Deferred(lambda: self._within(len(groups), partial(self.worker.measures.objective, broadcast, groups)))

    def _within(self, items: int, measure: Callable[[], T]) -> T:
        """The result of `measure`. Raises RaylflError if it takes longer than `items` times `client_timeout`."""
        try:
            with time_limit(call_timeout(self.timeout, items)):
                return measure()
        except TimeoutError as error:
            raise RaylflError(f"evaluation: {error}") from error

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        return self.worker.state_dict(x, buffers)

    def close(self) -> None:
        torch.set_num_threads(self._threads)
        self.worker.flat.close()
        if self.worker.device.type == "cuda":
            self.worker.free_memory()  # for the next run in this process


def call_timeout(timeout: float | None, items: int) -> float | None:
    """The time limit of a call that measures `items` batches or groups of clients; timeout: for one item."""
    return None if timeout is None else timeout * max(items, 1)


def first_row(uploads: State) -> State:
    """The upload of one client of a ring without its first dimension of length 1: the broadcast for the next client."""
    return {name: rows[0] for name, rows in uploads.items()}
