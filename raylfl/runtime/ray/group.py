"""Sums of uploads from worker to worker: the workers of a run as a group that exchanges columns, by NCCL or gloo.

Partial sums stay in the memory of their worker, on its GPU if it has one. Each worker of the group receives a range of
columns from all others, completes it, and sends it to the server. The additions are those of
`raylfl.core.partial_sums`, and the result has the bits of sums that travel through the object store.

The process groups are torch's. They are built without `init_process_group`, whose default group, one per process, a
module may need itself. Ray's GPU objects are an alpha version, and `ray.util.collective` needs cupy for NCCL.
"""

import pickle
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import ray
import torch
import torch.distributed

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.partial_sums import SubtreeSums, add_up, side_by_side
from raylfl.core.placement import Placement
from raylfl.errors import BadConfig
from raylfl.runtime.ray.stored import SamplesMissing
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import WorkerCall, WorkerLost, WorkerPool
from raylfl.runtime.workers.task import Room, TaskResult

dist: Any = torch.distributed  # its stubs lack what it exports
LEAST_SECONDS, SLOWEST = 60.0, 1e7  # the time limit of an exchange is so long, plus the bytes divided by bytes/s
COPIES = 3  # of resident sums on a GPU in an exchange: themselves, what is sent, what is received


def kind_of_group(runtime: RuntimeConfig, placement: Placement) -> str | None:
    """How sums go from worker to worker: `nccl` or `gloo`; None if they go through the object store.

    Raises BadConfig if `runtime.sums` names a way that cannot work.
    """
    kind, reason = "nccl" if runtime.sums == "auto" else runtime.sums, None
    if placement.nodes_apart:
        reason = "auto or object_store, as nodes with data of their own must not receive each other's uploads"
    elif kind == "nccl" and runtime.gpus != 1:
        reason = f"auto, object_store or gloo with {runtime.gpus:g} GPUs per worker (gpus_per_worker=1 allows NCCL)"
    elif kind == "nccl" and not dist.is_nccl_available():
        reason = "auto, object_store or gloo, as this torch has no NCCL (torch for CUDA on Linux has)"
    if reason is not None and runtime.sums not in ("auto", "object_store"):
        raise BadConfig(f"runtime.sums={kind}, but must be {reason}")
    return None if kind == "object_store" or reason is not None else kind


@dataclass(frozen=True)
class StoredSums:
    """The partial sums that one call has left in its node's object store, or in the memory of its worker.

    reference: refers to a `TaskResult` without clients, or to the key of the sums in the worker; worker, node: where
    the call ran; tasks: the numbers of the tasks whose uploads are added up; size: bytes of the longest vector;
    restart: the restart count of the worker that has the sums in its memory, None if they are in the object store.
    """

    reference: Any
    worker: int
    node: str | None
    tasks: list[int]
    size: int
    restart: int | None = None


class Exchange(NamedTuple):
    """The arguments of one exchange that are equal for all workers of the group.

    kind: `nccl` or `gloo`. host, port: the address of the server's key-value store, by which workers find each other.
    name: the name of the group, a new one if its processes change. seconds: the time limit. uploads: the number of
    uploads in a complete sum. sums: for each worker, as from `GroupMember.describe`.
    """

    kind: str
    host: str
    port: int
    name: str
    seconds: float
    uploads: int
    sums: list[bytes]


class GroupMember:
    """The part of one worker: its resident sums, and the process group that it is in.

    id: differs from that of any other process. round: of the sums.
    """

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self._sums: dict[str, list[SubtreeSums]] = {}
        self.round, self._name = -1, ""
        self._group: Any = None

    def keep(self, round: int, sums: list[SubtreeSums]) -> str:
        """Keeps partial sums of this round until there are sums of another one; returns their key."""
        if round != self.round:
            self.round, self._sums = round, {}
        key = uuid.uuid4().hex
        self._sums[key] = sums
        return key

    def sums(self, keys: Sequence[str]) -> list[SubtreeSums]:
        """The resident sums with these keys; raises SamplesMissing if this process does not have them."""
        if not self._sums.keys() >= set(keys):
            raise SamplesMissing
        terms = zip(*(self._sums[key] for key in keys), strict=True)
        return [{node: row for sums in term for node, row in sums.items()} for term in terms]

    def describe(self, keys: Sequence[str]) -> tuple[str, bytes]:
        """(`id`, the sums with these keys without their values, pickled)."""
        bare = [{node: row.to("meta") for node, row in term.items()} for term in self.sums(keys)]
        return self.id, pickle.dumps(bare)

    def exchange(self, work: Exchange, rank: int, keys: Sequence[str], device: torch.device) -> list[SubtreeSums]:
        """The sums over all workers of this worker's range of the columns.

        keys: of its resident sums. Raises RuntimeError if the workers do not reach each other.
        """
        resident, described = self.sums(keys), [pickle.loads(sums) for sums in work.sums]
        if work.name != self._name:
            if self._group is not None:
                self._group.abort()
            self._group, self._name = None, work.name
            self._group = process_group(work, rank)
        device = device if work.kind == "nccl" else torch.device("cpu")
        columns = [
            exchange_columns(
                self._group, rank, resident[t] if resident else {}, [s[t] if s else {} for s in described], device
            )
            for t in range(max(map(len, described)))
        ]
        return add_up([columns], work.uploads)


def process_group(work: Exchange, rank: int) -> Any:
    """A process group of torch, as `init_process_group` makes it for its default group. rank: of this worker."""
    limit = timedelta(seconds=work.seconds)
    store = dist.PrefixStore(work.name, dist.TCPStore(work.host, work.port, timeout=limit))
    if work.kind == "gloo":
        return dist.ProcessGroupGloo(store, rank, len(work.sums), timeout=limit)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    return dist.ProcessGroupNCCL(store, rank, len(work.sums), options)


def exchange_columns(
    group: Any, rank: int, resident: SubtreeSums, described: Sequence[SubtreeSums], device: torch.device
) -> SubtreeSums:
    """The subtree sums of all workers, of the columns of this worker only; called by all workers at the same time.

    resident: its subtree sums. described: those of each worker, on the device `meta`.
    """
    like = next((row for sums in described for row in sums.values()), None)
    if like is None:
        return {}
    edges = [len(like) * k // len(described) for k in range(len(described) + 1)]
    columns, empty = edges[rank + 1] - edges[rank], torch.empty(0, dtype=like.dtype, device=device)
    sent = torch.cat([empty, *(row[a:b].to(device) for a, b in pairwise(edges) for row in resident.values())])
    arriving = [len(sums) * columns for sums in described]
    received = empty.new_empty(sum(arriving))
    group.alltoall_base(received, sent, arriving, [len(resident) * (b - a) for a, b in pairwise(edges)]).wait()
    roots = [node for sums in described for node in sums]
    return dict(zip(roots, received.view(len(roots), columns), strict=True))


class WorkerGroup:
    """The workers of a run as a group, seen from the server.

    kind: `nccl` or `gloo`. works: whether sums go from worker to worker; False after failures.
    """

    def __init__(self, kind: str, pool: WorkerPool, room: Room | None, notify: Callable[[str], None]):
        """room: of a worker's GPU; notify: called with one line for the user."""
        self.kind, self.works, self._pool, self._room, self._notify = kind, True, pool, room, notify
        self._failed = False  # whether the newest exchange failed
        self._members, self._name = list[str](), ""  # the ids of the processes of the newest group, and its name
        self._host = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(self._host, 0, is_master=True, wait_for_workers=False)

    def fits(self, vectors: int) -> bool:
        """Whether this many vectors can stay with a worker: on a GPU, copies of them must fit beside local work."""
        return self.works and (self._room is None or COPIES * vectors <= self._room.clients)

    def joined(self, resident: Sequence[StoredSums], count: int) -> TaskResult | None:
        """The joined resident sums; None if they are lost, because the exchange failed.

        Workers describe their sums first: then they have finished earlier calls, and can exchange within a time limit.
        """
        pool = self._pool
        workers = pool.ready()
        if not {(one.worker, one.restart) for one in resident} <= {(w, pool.restarts[w]) for w in workers}:
            return None
        keys = [[one.reference for one in resident if one.worker == worker] for worker in workers]
        answers = pool.results(pool.send([WorkerCall("describe", tuple(own)) for own in keys], workers))
        if not any(isinstance(answer, WorkerLost) for answer in answers):
            members, sums = [answer[0] for answer in answers], [answer[1] for answer in answers]
            if members != self._members:
                self._members, self._name = members, uuid.uuid4().hex
            seconds = LEAST_SECONDS + len(workers) * max(one.size for one in resident) / SLOWEST
            work = Exchange(self.kind, self._host, self._store.port, self._name, seconds, count, sums)
            calls = [WorkerCall("exchange", (work, k, *own), timeout=2 * seconds) for k, own in enumerate(keys)]
            answers = pool.results(pool.send(calls, workers))
        if all(isinstance(answer, TaskResult) for answer in answers):
            self._failed = False
            nodes = [pool.nodes[worker] for worker in workers]
            for source, own in zip(nodes, sums, strict=True):
                for target in nodes:  # each worker received an equal part of the columns
                    pool.traffic.count_between(weight(pickle.loads(own)) // len(nodes), source, target)
            pool.traffic.count(received=weight(answers))
            return TaskResult.of_sums(side_by_side([answer.sums for answer in answers]))
        lost = [answer.reason for answer in answers if isinstance(answer, WorkerLost)]
        reasons = lost + [answer for answer in answers if isinstance(answer, str)]
        # after an error without a loss, or two failures in a row, others would follow
        self.works, self._failed, self._members = bool(lost) and not self._failed, True, []
        failure = f"sums could not go from worker to worker by {self.kind} ({reasons[0]}): the work is repeated"
        self._notify(failure if self.works else f"{failure}, and sums go through the object store from now on")
        return None
