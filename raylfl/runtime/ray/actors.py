"""Worker actors: Ray actors around `Worker`, whose methods take and return states as numpy arrays (packed states)."""

import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.partial_sums import add_up, columns_of
from raylfl.core.samples import as_tensor
from raylfl.core.torch_state import torch_defaults
from raylfl.errors import exits_as_errors, headline
from raylfl.runtime.faults import kill_point
from raylfl.runtime.ray.group import Exchange, GroupMember
from raylfl.runtime.ray.reservation import Bundle
from raylfl.runtime.ray.stored import SamplesMissing
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.workers.backend import first_row
from raylfl.runtime.workers.nodes import OPERATIONS
from raylfl.runtime.workers.task import ClientReports, Task, TaskResult, added_up, pack, unpack
from raylfl.runtime.workers.worker import Worker
from raylfl.startup import process

Packed = dict[str, np.ndarray]


class RunArguments(NamedTuple):
    """The arguments of `WorkerActor.run` besides the start and client states.

    tasks: their `client_states` are numbers of the call's states. returns_states: whether the call returns the new
    states of clients. separate: the field of the result that is a value of its own: sums, if they are too large for the
    first value, or uploads, in a ring; None if there is none. `resident`: the sums stay in the worker's memory, and
    their key is that value. in_ring: whether the start is the upload of the previous client of a ring, not the
    broadcast.
    """

    tasks: Sequence[Task]
    returns_states: bool
    separate: str | None
    in_ring: bool


class WorkerActor:
    """A `Worker` as a Ray actor.

    The first argument of each Python method is `shared` = [experiment, assigned, samples]. experiment: a reference to
    the experiment. assigned: the number of the worker to which the call's clients are assigned; None if clients are not
    assigned to workers. samples: that worker's training samples (`StoredSamples`); None if the actor has them.

    Each Python method first builds the `Worker` for these arguments if this process has none. A new or restarted actor
    therefore needs no set-up call, and an actor that replaces a lost one reads the samples of the lost one's clients.
    Raises SamplesMissing for a call without samples if the actor does not have them.
    """

    def __init__(self) -> None:
        self._workers: dict[int | None, Worker] = {}  # assigned worker -> `Worker`: its own, and one for a lost actor
        self._reference: Any = None
        self._member = GroupMember()
        self.fault = kill_point()
        process.set_up()
        import lightning.pytorch  # noqa: F401 - loaded in advance

    @exits_as_errors()
    @torch_defaults()
    def worker(self, shared: list[Any]) -> Worker:
        """The worker for the experiment and samples in `shared`, built if this process has none for them."""
        reference, assigned, samples = shared
        if reference != self._reference:
            self._workers, self._reference, self._member = {}, reference, GroupMember()
        if assigned not in self._workers:
            if assigned is not None and samples is None:
                raise SamplesMissing
            if len(self._workers) > 1:
                self._workers.popitem()
            setup = ray.get(reference).setup
            setup = setup if samples is None else replace(setup, train=samples.read())
            self._workers[assigned] = Worker(setup, partial(os._exit, 1))  # Ray starts the actor again
        elif self._workers[assigned].flat.closed:  # this process has built another worker of several processes
            self._workers[assigned] = Worker(self._workers[assigned].setup, partial(os._exit, 1))
        return self._workers[assigned]

    def ping(self, shared: list[Any]) -> str:
        """Builds the worker, so that later calls do not wait for it; returns the id of this actor's node."""
        self.worker(shared)
        return str(ray.get_runtime_context().get_node_id())

    def traits(self, shared: list[Any]) -> tuple[dict[str, Any], int | None, Packed]:
        """(attributes of `Backend`, the bytes of a client's state if there are states, packed fields of `Initial`)."""
        worker = self.worker(shared)
        state = worker.setup.fresh_state(worker.initial)
        values = {"one_by_one": worker.forms.one_by_one, "room": worker.forms.room}
        values |= {name: getattr(worker, name) for name in ("device_name", "whole", "cut")}
        return values, weight(state) if state else None, pack(worker.initial._asdict())

    def run(self, shared: list[Any], work: bytes, start: Packed, *client_states: Packed) -> Any:
        """Runs tasks; returns their results, then values for `RunArguments.separate` and the new states, if any.

        work: pickled `RunArguments`, because Ray's own pickling of small objects takes three times as long. start: the
        broadcast, or the upload of the previous client of a ring, which is empty if that client failed.
        """
        call: RunArguments = pickle.loads(work)
        worker, tasks = self.worker(shared), call.tasks

        def results() -> Iterator[TaskResult]:
            broadcast = first_row(unpack(start)) if call.in_ring else unpack(start)
            for task in tasks:
                if not broadcast:
                    reason = "the previous client of the ring sent nothing"
                    yield TaskResult(ClientReports.failed(task.clients, reason))
                else:
                    old = [None if k is None else unpack(client_states[k]) for k in task.client_states]
                    yield worker.run(task, broadcast, old)

        self.fault("work", tasks[0].round)
        stay = call.separate == "resident"
        done = added_up(results(), tasks[0].sums, stay)
        self.fault("worked", tasks[0].round)
        values: list[Any] = [done]
        if call.separate in ("sums", "resident"):
            first = next((result for result in done if not result.failed), done[0])
            sums, first.sums = first.sums, []
            values.append(self._member.keep(tasks[0].round, sums) if stay else TaskResult.of_sums(sums))
        elif call.separate == "uploads":
            values.append(pack(done[0].uploads))
            done[0].uploads = {}
        if call.returns_states:
            for result in done:
                values += [pack(state) for state in result.client_states or [{}] * len(result.clients)]
                result.client_states = ()
        return tuple(values) if len(values) > 1 else done

    def join(self, shared: list[Any], count: int, *parts: TaskResult) -> TaskResult:
        """Adds up the partial sums of several calls. count: the number of uploads in a complete sum."""
        return TaskResult.of_sums(add_up([part.sums for part in parts], count))

    def columns(self, shared: list[Any], count: int, pieces: int, *parts: TaskResult) -> Iterator[Any]:
        """Yields None, then the result of `join` cut into `pieces` ranges of columns, one range after the other."""
        yield None  # the pool fetches the first value of each call
        for k in range(pieces):
            yield TaskResult.of_sums(add_up([columns_of(part.sums, k, pieces) for part in parts], count))

    def describe(self, shared: list[Any], *keys: str) -> tuple[str, bytes]:
        return self._member.describe(keys)

    def exchange(self, shared: list[Any], work: Exchange, rank: int, *keys: str) -> TaskResult | str:
        """Exchanges resident sums with the group's other workers, as `GroupMember.exchange`; the reason if it fails."""
        worker = self.worker(shared)
        self.fault("exchange", self._member.round)
        try:
            return TaskResult.of_sums(self._member.exchange(work, rank, keys, worker.device))
        except RuntimeError as error:  # torch's errors of connections and of memory
            return f"{type(error).__name__}: {headline(error)}"

    @exits_as_errors()
    def run_block(self, shared: list[Any], operation: str, job: Any, *states: Packed) -> Any:
        """Runs an operation of OPERATIONS on a block of graph nodes; returns (a value, *states)."""
        worker = self.worker(shared)
        if operation == "work":
            self.fault("work", job.tasks[0].round)
        value, *found = OPERATIONS[operation](worker, job, *map(unpack, states))
        if operation == "work":
            self.fault("worked", job.tasks[0].round)
        return (value, *map(pack, found)) if found else value

    @exits_as_errors()
    def measure(self, shared: list[Any], method: str, broadcast: Packed, items: Sequence[Any]) -> list[Any]:
        """`Worker.evaluate` of chunks, or (loss, gradient as an array) by this method of `Worker.measures`."""
        worker, state = self.worker(shared), unpack(broadcast)
        if method == "evaluate":
            return worker.evaluate(state, items)
        return [(loss, gradient.numpy()) for loss, gradient in getattr(worker.measures, method)(state, items)]

    @exits_as_errors()
    def state_dict(self, shared: list[Any], x: np.ndarray, buffers: np.ndarray) -> dict[str, Tensor]:
        return self.worker(shared).state_dict(as_tensor(x), as_tensor(buffers))


def start_workers(runtime: RuntimeConfig, bundles: Sequence[Bundle | None]) -> list[Any]:
    """Starts a worker actor in each bundle; None: in the caller's placement group if there is one, or anywhere."""
    options: dict[str, Any] = {
        "num_cpus": runtime.cpus_per_worker,
        "num_gpus": runtime.gpus,
        "max_restarts": -1,
        "max_task_retries": 0,
    }
    here, actors = ray.util.get_current_placement_group(), list[Any]()
    for bundle in bundles:
        group, number = bundle or (here, -1)
        strategy = None if group is None else PlacementGroupSchedulingStrategy(group, number, bundle is None)
        actors.append(ray.remote(WorkerActor).options(**options, scheduling_strategy=strategy).remote())
    return actors
