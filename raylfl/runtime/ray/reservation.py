"""The reservation of a run's workers: bundles of CPUs and GPUs in Ray's placement groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig, RaylflError
from raylfl.runtime.ray.resources import (
    Resources,
    bundle_of,
    count_workers,
    nodes_of_cluster,
    shortage,
    workers_that_fit,
)

NODE_SHARE = 0.001  # amount that a worker takes of a node's custom resource, which is a name, not a quantity
FIRST_NOTICE_SECONDS, NOTICE_SECONDS = 2.0, 30.0  # until the first line for the user about a wait; between two lines
SETTLE_SECONDS = 10.0  # until a request is made smaller, and until bundles of a lost node count as lost


class Bundle(NamedTuple):
    """The place of a worker: the number of a bundle in a placement group."""

    group: Any
    number: int


@dataclass(frozen=True)
class Request:
    """A placement group that Ray has not created yet. ready: a reference that resolves when it is; since: a time."""

    group: Any
    ready: Any
    size: int
    since: float


class Reservation:
    """The bundles of a run's workers, one each, at most `most`.

    As many as there is room for are reserved together. While there are fewer than `most`, further ones are requested as
    soon as there is room for them. If `runtime.workers` is given, the missing ones are requested even without room, so
    that an autoscaler starts nodes for them. Ray itself moves the bundles of a lost node to other nodes.
    """

    def __init__(self, runtime: RuntimeConfig, most: int, names: Sequence[str | None] = ()):
        """names: for each of the `most` workers, the custom resource that its node must have, None for any node.

        If there are such names, all workers are reserved together, however long that takes.
        """
        self.runtime, self.most, self.names = runtime, most, tuple(names) if any(names) else ()
        self._groups = list[Any]()
        self._request: Request | None = None
        self._cap: int | None = None  # the largest request, after a larger one was not granted
        # the start; the newest times with room for a worker, with all bundles on living nodes, without free resources
        self._began = self._room_seen = self._whole_at = self._scarce_at = time.monotonic()

    def bundles(self) -> dict[Bundle, str]:
        """The reserved bundles on living nodes -> the id of their node."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return {
            Bundle(group, number): node
            for group in self._groups
            for number, node in sorted(placement_group_table(group)["bundles_to_node_id"].items())
            if node in alive
        }

    def wait(self, notify: Callable[[str], None]) -> None:
        """Waits for the first bundles; `notify` is called with a line about what is missing. Raises as `update`."""
        notice_at = time.monotonic() + FIRST_NOTICE_SECONDS
        while not self.update():
            if time.monotonic() > notice_at:
                notice_at = time.monotonic() + NOTICE_SECONDS
                notify(
                    f"waiting for workers: {self.lack()}; without room for one, the run ends after "
                    f"{self.runtime.wait:g} s (runtime.wait)"
                )
            ray.wait([self._request.ready] if self._request else [], timeout=1)

    def update(self) -> bool:
        """Requests the bundles that are missing; returns whether Ray has granted the request of the last call.

        Raises RaylflError, or BadConfig before the first bundles, if there was no room for a worker for `runtime.wait`.
        """
        now, request = time.monotonic(), self._request
        if request is not None and ray.wait([request.ready], timeout=0)[0]:
            self._groups.append(request.group)
            self._request = self._cap = None
            return True
        size = self._missing(now)
        waited = 0.0 if request is None else now - max(request.since, self._scarce_at)
        if waited > SETTLE_SECONDS and size > 1 and not self.names:  # no node has a worker's share of what is free
            size = self._cap = size // 2
        if size != (0 if request is None else request.size):
            self._ask(size, now)
        return False

    def _missing(self, now: float) -> int:
        """The number of bundles to request now."""
        placed, reserved = len(self.bundles()), sum(group.bundle_count for group in self._groups)
        if placed == reserved:
            self._whole_at = now
        elif now - self._whole_at < SETTLE_SECONDS:
            placed = reserved  # Ray may still move them to other nodes
        fit = self._check_room(now, placed)
        if self.names or placed >= self.most:
            return self.most if not reserved else 0
        free = free_workers(self.runtime)
        if not reserved and now - self._began < SETTLE_SECONDS:
            free = fit  # what others use may soon be free: an earlier run of this process has just ended
        if free:
            return min(self.most - placed, free, self._cap or free)
        self._scarce_at = now
        return max(0, self.most - reserved) if self.runtime.workers is not None else int(not reserved)

    def _check_room(self, now: float, placed: int) -> int:
        """Raises the errors of `update`; returns the number of workers that fit if nothing else runs on the cluster."""
        nodes = nodes_of_cluster()
        if not self._groups and not self.runtime.wait:
            count_workers(self.runtime, self.most, nodes)
        fit = workers_that_fit(self.runtime, nodes)
        if (placed or fit) and not self._absent(nodes):
            self._room_seen = now
        elif now - self._room_seen >= self.runtime.wait:
            error = RaylflError if self._groups else BadConfig
            raise error(f"no room for a worker for {self.runtime.wait:g} s (runtime.wait): {self.lack()}")
        return fit

    def _absent(self, nodes: Sequence[Resources]) -> list[str]:
        """The names that no node has."""
        return sorted({name for name in self.names if name and not any(name in node for node in nodes)})

    def _ask(self, size: int, now: float) -> None:
        """Replaces the request by one for this many bundles; 0: by none."""
        if self._request is not None:
            remove_placement_group(self._request.group)
            self._request = None
        if size:
            names = self.names or (None,) * size
            bundles = [bundle_of(self.runtime) | ({name: NODE_SHARE} if name else {}) for name in names]
            group = placement_group(bundles, strategy="SPREAD" if self.runtime.spread else "PACK")
            self._request = Request(group, group.ready(), size, now)

    def lack(self) -> str:
        """What the cluster lacks for all workers, as a text for the user."""
        nodes = nodes_of_cluster()
        if absent := self._absent(nodes):
            return (
                f"the data of some clients are on nodes {', '.join(absent)}, but the cluster has no node of that name: "
                f"start it with ray start ... --resources='{{\"{absent[0]}\": 1}}'"
            )
        workers, free = self.runtime.workers or 1, ray.available_resources()
        unused = " and ".join(f"{free.get(key, 0.0):g} {key}s" for key in bundle_of(self.runtime))
        needs = shortage(self.runtime, workers, nodes)
        return f"runtime.workers={self.runtime.workers or 'null'} needs {needs} ({unused} free)"

    def release(self) -> None:
        """Gives the bundles back; ends the actors in them."""
        self._ask(0, 0.0)
        for group in self._groups:
            remove_placement_group(group)


def free_workers(runtime: RuntimeConfig) -> int:
    """The number of workers for which the cluster's free resources would suffice if they were on one node."""
    return workers_that_fit(runtime, [ray.available_resources()])
