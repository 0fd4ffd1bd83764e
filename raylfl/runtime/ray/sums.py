"""Partial sums on their way to the server: those of one node are joined there, so that one vector per sum leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayTaskError

from raylfl.core.partial_sums import Roots
from raylfl.runtime.ray.actors import unpack_roots
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.connection import direct_bytes
from raylfl.runtime.ray.failures import loss_behind
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import Call, WorkerLost

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Part:
    """The partial sums of one call: a reference to its packed roots, the worker, and the tasks that they add up.

    node: the worker's; width: floats of the longest vector.
    """

    reference: Any
    worker: int
    node: str | None
    tasks: list[int]
    width: int


def fetch(channel: Channel, parts: Sequence[Part], count: int) -> tuple[list[list[Roots]], list[int]]:
    """(the roots of these parts of `count` rows, the tasks whose uploads were lost with their node).

    Parts in the object store of one node are joined by one of its workers. If that fails, the server fetches each.
    """
    together = [
        own for own in by_node(parts) if len(own) > 1 and max(part.width for part in own) * FLOAT > direct_bytes()
    ]
    calls = [Call("join", (count, *(part.reference for part in own))) for own in together]
    sent = [channel.pool.submit(own[0].worker, call) for own, call in zip(together, calls, strict=True)]
    found, missing = list[Any](), [part for part in parts if not any(part in own for own in together)]
    for own, call in zip(together, sent, strict=True):
        try:
            (answer,) = channel.pool.results([call])
        except (RayTaskError, ObjectLostError) as error:
            answer = WorkerLost(str(loss_behind(error)))
        if isinstance(answer, WorkerLost):
            missing += own
        else:
            found.append(answer)
    lost = list[int]()
    for part in missing:
        try:
            found.append(ray.get(part.reference))
        except ObjectLostError:
            lost += part.tasks
    channel.traffic.count(received=weight(found))
    return [unpack_roots(packed) for packed in found], lost


def by_node(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts of each node."""
    out: dict[str | None, list[Part]] = {}
    for part in parts:
        out.setdefault(part.node, []).append(part)
    return list(out.values())
