"""The backend on Ray: worker actors run local work and evaluations; client states are passed by reference."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ObjectLostError
from torch import Tensor

from raylfl.core.algorithm import State
from raylfl.core.deferred import Deferred
from raylfl.core.samples import as_tensor
from raylfl.core.summing import rows_reason
from raylfl.experiment.parts import Experiment, Initial
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.cohort import CohortInFlight, RingInFlight, numbers_by_worker, results_of_blocks, send_blocks
from raylfl.runtime.ray.connection import direct_bytes
from raylfl.runtime.ray.failures import StatesLost
from raylfl.runtime.ray.group import WorkerGroup, kind_of_group
from raylfl.runtime.ray.resources import counted
from raylfl.runtime.ray.stored import StoredExperiment, StoredSamples, put_samples
from raylfl.runtime.ray.traffic import TrafficCounter, weight
from raylfl.runtime.ray.worker_pool import WorkerCall, WorkerPool, place_of
from raylfl.runtime.workers.backend import Backend, BlockCall, Handle, call_timeout
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.measures import weighted
from raylfl.runtime.workers.task import Chunk, Task, TaskResult, pack, unpack

COPIES = 2**20  # bytes of a broadcast, times workers, above which one shared object is faster than a copy per call
HEAP = 2**30  # bytes of all clients' states above which they are moved to the object store, which can spill to disk


class RayBackend(Backend):
    """Sends tasks to a pool of worker actors, and repeats tasks that are lost or fail."""

    def __init__(
        self,
        experiment: Experiment,
        stored: StoredExperiment,
        actors: Sequence[Any],
        notify: Callable[[str], None],
        deal: Callable[[int], StoredSamples] | None = None,
    ):
        """A backend on these actors, from `start_workers`.

        stored: `experiment` in Ray's object store; notify: called with one line for the user; deal: as in `WorkerPool`,
        None if this process has the samples.
        """
        runtime = experiment.config.runtime
        self.attempts, self.timeout = 1 + runtime.client_retries, runtime.client_timeout
        deal = deal or partial(put_samples, experiment.setup, stored.placement)
        self.pool = WorkerPool(actors, stored, notify, TrafficCounter(ray.get_runtime_context().get_node_id()), deal)
        self.workers, self._stored = len(self.pool), stored
        self._experiment = experiment
        self._weights = experiment.setup.population.weights
        traits, state, self._initial = self.pool.call("traits", attempts=self.attempts)
        vars(self).update(traits)
        size, keeps = state or 0, state is not None
        spills = size < direct_bytes() and size * experiment.clients > HEAP
        kind = kind_of_group(runtime, stored.placement)
        group = None if kind is None or self.workers < 2 else WorkerGroup(kind, self.pool, self.room, notify)
        self.channel = Channel(self.pool, self.attempts, self.timeout, keeps, size, spills, group)

    def initial(self) -> Initial:
        return Initial(**{name: torch.from_numpy(values.copy()) for name, values in self._initial.items()})

    def put(self, state: State) -> Handle:
        return ray.put(pack(state))

    def get(self, handles: Sequence[Handle]) -> list[State]:
        self.pool.traffic.count_arguments(handles, self.pool.traffic.here)
        try:
            return [unpack(p) for p in ray.get(list(handles))]
        except ObjectLostError:
            raise StatesLost(self.lost_objects()) from None

    # -- cohorts -----------------------------------------------------------------------------------------------

    def run(self, tasks: Sequence[Task], broadcast: State) -> Deferred[list[TaskResult]]:
        return Deferred(CohortInFlight(self.channel, tasks, self.shared_broadcast(broadcast)).results)

    def run_blocks(self, calls: Sequence[BlockCall]) -> Deferred[list[Any]]:
        sent = send_blocks(self.channel, calls)
        return Deferred(lambda: results_of_blocks(self.channel, calls, sent))

    def run_ring(self, tasks: Sequence[Task], broadcast: State) -> Deferred[list[TaskResult]]:
        return Deferred(RingInFlight(self.channel, tasks, broadcast).results)

    # -- measurements --------------------------------------------------------------------------------------------

    def evaluate(self, broadcast: State, chunks: Sequence[Chunk]) -> Deferred[list[Logged]]:
        batches = [chunk.batches(self._experiment.setup.eval_batch_size) for chunk in chunks]
        assigned = [self._stored.placement.worker_of(chunk.client) for chunk in chunks]
        return self._spread("evaluate", broadcast, chunks, batches, assigned)

    def objective(self, broadcast: State, groups: Sequence[Sequence[int]]) -> Deferred[list[tuple[float, Tensor]]]:
        if not self._stored.assigned:
            pairs = self._spread("objective", broadcast, groups, [1] * len(groups), [None] * len(groups))
            return pairs.then(lambda found: [(loss, as_tensor(g)) for loss, g in found])
        clients = [c for group in groups for c in group]
        assigned = [self._stored.placement.worker_of(c) for c in clients]
        pairs = self._spread("client_objectives", broadcast, clients, [1] * len(clients), assigned)

        def sums(found: list[Any]) -> list[tuple[float, Tensor]]:
            of = dict(zip(clients, found, strict=True))
            return [
                weighted(np.array([of[c][0] for c in g]), [as_tensor(of[c][1]) for c in g], self._weights[list(g)])
                for g in groups
            ]

        return pairs.then(sums)

    def _spread(
        self, method: str, state: State, items: Sequence[Any], sizes: Sequence[int], assigned: Sequence[int | None]
    ) -> Deferred[list[Any]]:
        """Calls `WorkerActor.measure` for parts of the items; returns one result per item, in order.

        method: its argument. sizes: the time limit of each item, as a multiple of `runtime.client_timeout`. assigned:
        for each item, the number of the worker that has the item's samples, None for any worker.
        """
        broadcast, workers = self.shared_broadcast(state), self.pool.available()
        hands = items_of_calls(assigned, len(workers))
        calls = [
            WorkerCall(
                "measure",
                (method, broadcast, [items[k] for k in hand]),
                timeout=call_timeout(self.timeout, sum(sizes[k] for k in hand)),
                assigned=assigned[hand[0]],
            )
            for hand in hands
        ]
        sent = self.pool.send(calls, workers)
        self.pool.traffic.count(sent=weight(broadcast) * len(calls))

        def answers() -> list[Any]:
            answered = self.pool.with_retries(sent, self.attempts)
            self.pool.traffic.count(received=weight(answered))
            by_item = {
                k: v for hand, answer in zip(hands, answered, strict=True) for k, v in zip(hand, answer, strict=True)
            }
            return [by_item[k] for k in range(len(items))]

        return Deferred(answers)

    def shared_broadcast(self, broadcast: State) -> Handle:
        """The broadcast as an argument of many calls: copied into each call if small, otherwise one shared object."""
        packed = pack(broadcast)
        size = weight(packed)
        if size < 0.9 * direct_bytes() and size * self.workers <= COPIES:
            return packed
        self.pool.traffic.count(sent=size)
        return ray.put(packed)

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.pool.call("state_dict", x.numpy(), buffers.numpy(), attempts=self.attempts)
        return found

    def traffic(self) -> dict[str, int]:
        return self.pool.traffic.take()

    def location(self) -> str:
        self.pool.ready()
        experiment, stored, nodes, group = self._experiment, self._stored, self.pool.nodes, self.channel.group
        runtime, algorithm = experiment.config.runtime, experiment.algorithm
        share, peers = runtime.gpus, algorithm.pattern.peers
        clients = "1 client that owns all data" if experiment.setup.merged else counted(experiment.clients, "client")
        anywhere = stored.placement.name == "shared" and len(nodes) > 1
        clients += " in blocks on" if peers else " on any of" if anywhere else " on"
        each = f"{'one GPU' if share == 1 else f'{share:g} GPUs'} each ({self.device_name})" if share else "on CPUs"
        each += f", over which {runtime.processes} processes shard the model" if runtime.processes > 1 else ""
        known = {node for node in nodes if node is not None}
        on_nodes = f" on {counted(len(known), 'node')}" + " so far" * (None in nodes)
        reads = "reads only its own clients' samples" if stored.placement.name == "pinned" else "can read all samples"
        size = f"{stored.sample_bytes / 1e6:,.1f} MB"
        rest = f"; all samples ({size}) are in the process that started the run" if stored.sample_bytes else ""
        if group is not None and not peers and rows_reason(algorithm) is None:
            rest += f"; long sums of uploads go from worker to worker by {group.kind}"
        return (
            f"{clients} {counted(len(nodes), 'worker')}, {each},{on_nodes}; each worker {reads}; "
            f"the server{place_of(self.pool.traffic.here) or ' on the same node'}{rest}"
        )

    def describe(self) -> dict[str, Any]:
        return {
            "backend": "ray",
            "workers": self.workers,
            "device": self.device_name,
            "placement": self._stored.placement.name,
            "cluster": ray.cluster_resources(),
        }

    def lost_objects(self) -> str:
        """The objects of this run that are lost with a node, and the node, as a text for the user."""
        peers = self._experiment.algorithm.pattern.peers
        what = "blocks of graph nodes" if peers else "client states" if self.channel.keeps else "uploads"
        return what + self.pool.lost_nodes()


def items_of_calls(assigned: Sequence[int | None], workers: int) -> list[list[int]]:
    """The numbers of the items in each call: one call per assigned worker; other items are divided among the workers.

    >>> items_of_calls([None, None, 4, None, 4, 1], 2)
    [[0, 3], [1], [2, 4], [5]]
    """
    by_worker = numbers_by_worker(assigned)
    free = by_worker.pop(None, [])
    return [*(free[w::workers] for w in range(min(workers, len(free)))), *by_worker.values()]
