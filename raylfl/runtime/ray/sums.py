"""Transfer of partial sums to the server: sums on one node are joined there, then nodes divide the columns.

The columns of a sum are independent. If several nodes have partial sums, a worker on each node joins the node's sums
and cuts the result into pieces of columns, one piece per node. Each node receives its piece from all other nodes,
completes these columns, and sends them to the server. The server thus receives one vector per sum, and all links carry
about the same number of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayTaskError

from raylfl.core.partial_sums import SubtreeSums, side_by_side
from raylfl.runtime.ray.actors import unpack_sums
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.connection import direct_bytes
from raylfl.runtime.ray.failures import loss_behind
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import Call, WorkerLost

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Part:
    """The partial sums that one call has left in its node's object store.

    reference: refers to the packed sums (`pack_sums`); worker, node: where the call ran; tasks: the numbers of the
    tasks whose uploads are added up; width: floats of the longest vector.
    """

    reference: Any
    worker: int
    node: str | None
    tasks: list[int]
    width: int


def fetch(channel: Channel, parts: Sequence[Part], count: int) -> tuple[list[list[SubtreeSums]], list[int]]:
    """Fetches partial sums to the server; returns (the sums, the tasks whose sums were lost with their node).

    If no vector is larger than `direct_bytes`, all parts are fetched one by one. Otherwise workers join the parts on
    their node first. If vectors are at least twice as large, several nodes then divide the columns, unless nodes must
    not receive each other's uploads (`Channel.apart`). Parts that could not be joined are fetched one by one. count:
    the number of uploads in a complete sum.
    """
    longest, nodes = max((part.width for part in parts), default=0) * FLOAT, by_node(parts)
    if longest <= direct_bytes():
        return _each(channel, parts)
    pieces = 1 if channel.apart else min(len(nodes), longest // max(direct_bytes(), 1))
    if pieces > 1:
        whole = _by_columns(channel, nodes, pieces, count)
        return _each(channel, parts) if whole is None else ([whole], [])
    together = [own for own in nodes if len(own) > 1]
    joined = _answers(channel, together, [Call("join", (count, *references(own))) for own in together])
    failed = [part for own, answer in zip(together, joined, strict=True) if answer is None for part in own]
    alone = [part for own in nodes if len(own) == 1 for part in own]
    found = [unpack_sums(answer) for answer in joined if answer is not None]
    others, lost = _each(channel, [*alone, *failed])
    return [*found, *others], lost


def _by_columns(channel: Channel, nodes: Sequence[Sequence[Part]], pieces: int, count: int) -> list[SubtreeSums] | None:
    """The joined partial sums of several nodes; None if a worker or an object was lost.

    nodes: the parts of each node. pieces: the number of ranges of columns, each completed on a different node. count:
    the number of uploads in a complete sum.
    """
    cuts = [Call("columns", (count, pieces, *references(own)), 1 + pieces) for own in nodes]
    cut = _answers(channel, nodes, cuts)
    if any(own is None for own in cut):
        return None
    joins = [Call("join", (count, *(own[1 + k] for own in cut))) for k in range(pieces)]
    joined = _answers(channel, nodes[:pieces], joins)
    return None if any(own is None for own in joined) else side_by_side([unpack_sums(own) for own in joined])


def _answers(channel: Channel, nodes: Sequence[Sequence[Part]], calls: Sequence[Call]) -> list[Any]:
    """The results of one call per node, carried out by the worker of the node's first part; None for a lost call."""
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
            channel.traffic.count(received=weight(answer))
    return out


def _each(channel: Channel, parts: Sequence[Part]) -> tuple[list[list[SubtreeSums]], list[int]]:
    """Fetches the parts one by one; returns (partial sums of each part, tasks of lost parts)."""
    found, lost = list[Any](), list[int]()
    for part in parts:
        try:
            channel.traffic.given([part.reference], channel.traffic.here)
            found.append(ray.get(part.reference))
        except ObjectLostError:
            lost += part.tasks
    channel.traffic.count(received=weight(found))
    return [unpack_sums(packed) for packed in found], lost


def references(parts: Sequence[Part]) -> list[Any]:
    """The references to the packed partial sums of these parts."""
    return [part.reference for part in parts]


def by_node(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts grouped by node."""
    out: dict[str | None, list[Part]] = {}
    for part in parts:
        out.setdefault(part.node, []).append(part)
    return list(out.values())
