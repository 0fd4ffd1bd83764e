"""Transfer of partial sums to the server: each node joins its own sums, then the nodes divide the columns.

The columns of a sum are independent. If several nodes have large partial sums, a worker on each node joins the node's
sums and cuts the result into pieces of columns, at most one piece per node. Each piece has a node that receives the
piece from all other nodes, completes these columns, and sends them to the server. The server thus receives one vector
per sum, and all links carry about the same number of bytes. Workers with a GPU each do the same without the object
store (`raylfl.runtime.ray.group`).
"""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayTaskError

from raylfl.core.partial_sums import side_by_side
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.connection import direct_bytes
from raylfl.runtime.ray.failures import loss_behind
from raylfl.runtime.ray.group import StoredSums
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import WorkerCall, WorkerLost
from raylfl.runtime.workers.task import TaskResult


def fetch(channel: Channel, stored: Sequence[StoredSums], count: int) -> tuple[list[TaskResult], list[int]]:
    """Fetches partial sums to the server; returns (the sums, the tasks whose sums were lost with their node).

    Sums in the memory of workers are joined by the workers' group. Others are fetched one by one if no vector is larger
    than `direct_bytes`; otherwise workers join the sums on their node first. If the longest vector has at least twice
    `direct_bytes`, several nodes divide the columns, unless nodes must not receive each other's uploads. count: the
    number of uploads in a complete sum.
    """
    if channel.group is not None and (resident := [one for one in stored if one.restart is not None]):
        sums, lost = fetch(channel, [one for one in stored if one.restart is None], count)
        exchanged = channel.group.joined(resident, count)
        if exchanged is None:
            return sums, [*lost, *(k for one in resident for k in one.tasks)]
        return [*sums, exchanged], lost
    longest, by_node = max((one.size for one in stored), default=0), dict[str | None, list[StoredSums]]()
    for one in stored:
        by_node.setdefault(one.node, []).append(one)
    nodes = list(by_node.values())
    if longest <= direct_bytes():
        return _each(channel, stored)
    pieces = 1 if channel.pool.stored.placement.nodes_apart else min(len(nodes), longest // max(direct_bytes(), 1))
    if pieces > 1:
        whole = _by_columns(channel, nodes, pieces, count)
        return _each(channel, stored) if whole is None else ([whole], [])
    together = [own for own in nodes if len(own) > 1]
    joined = _answers(
        channel, together, [WorkerCall("join", (count, *(one.reference for one in own))) for own in together]
    )
    failed = [one for own, answer in zip(together, joined, strict=True) if answer is None for one in own]
    alone = [one for own in nodes if len(own) == 1 for one in own]
    others, lost = _each(channel, [*alone, *failed])
    return [*(answer for answer in joined if answer is not None), *others], lost


def _by_columns(channel: Channel, nodes: Sequence[Sequence[StoredSums]], pieces: int, count: int) -> TaskResult | None:
    """The joined partial sums of several nodes, each of which completes one of `pieces`; None if any was lost."""
    cuts = [WorkerCall("columns", (count, pieces, *(one.reference for one in own)), 1 + pieces) for own in nodes]
    cut = _answers(channel, nodes, cuts)
    if any(own is None for own in cut):
        return None
    joins = [WorkerCall("join", (count, *(own[1 + k] for own in cut))) for k in range(pieces)]
    joined = _answers(channel, nodes[:pieces], joins)
    if any(own is None for own in joined):
        return None
    return TaskResult.of_sums(side_by_side([own.sums for own in joined]))


def _answers(channel: Channel, nodes: Sequence[Sequence[StoredSums]], calls: Sequence[WorkerCall]) -> list[Any]:
    """The results of one call per node, carried out by the worker of the node's first sums; None for a lost call."""
    sent = [channel.pool.submit(own[0].worker, call) for own, call in zip(nodes, calls, strict=True)]
    out = list[Any]()
    for call in sent:
        try:
            (answer,) = channel.pool.results([call])
        except (RayTaskError, ObjectLostError) as error:
            loss_behind(error)
            answer = None
        out.append(None if isinstance(answer, WorkerLost) else answer)
        if len(call.references) == 1:
            channel.pool.traffic.count(received=weight(answer))
    return out


def _each(channel: Channel, stored: Sequence[StoredSums]) -> tuple[list[TaskResult], list[int]]:
    """Fetches stored sums one by one; returns (the sums of each call, tasks whose sums were lost)."""
    fetched, lost = list[TaskResult](), list[int]()
    for one in stored:
        try:
            channel.pool.traffic.count_arguments([one.reference], channel.pool.traffic.here)
            fetched.append(ray.get(one.reference))
        except ObjectLostError:
            lost += one.tasks
    channel.pool.traffic.count(received=weight(fetched))
    return fetched, lost
