"""The reservation of a run's workers: bundles of CPUs and GPUs in Ray's placement groups."""

import time
from collections.abc import Callable, Sequence
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
SETTLE_SECONDS = 10.0  # of waiting for all bundles at the start, and until bundles of a lost node are given up


class Bundle(NamedTuple):
    """The place of a worker: the number of a bundle in a placement group."""

    group: Any
    number: int


class Reservation:
    """The bundles of a run's workers, one each, at most `most`.

    A run starts with as many as there is room for; further ones are requested while there are fewer than `most`. If
    `runtime.workers` is given, the missing ones are requested even without room, so that an autoscaler starts nodes.

    Each bundle is a placement group of its own, which can be given up alone: as long as a bundle of a lost node has no
    place elsewhere, Ray tries to move it without a pause, and starts no other group of the cluster.
    """

    def __init__(self, runtime: RuntimeConfig, most: int, names: Sequence[str | None] = ()):
        """names: for each of the `most` workers, the custom resource that its node must have, None for any node.

        If there are such names, the bundles are one group: all are reserved together, however long that takes.
        """
        self.runtime, self.most, self.names = runtime, most, tuple(names) if any(names) else ()
        self._groups = list[Any]()
        self._requests = dict[Any, Any]()  # a reference that resolves when Ray has created a group -> the group
        self._lost_since = dict[Any, float]()  # group with a bundle on no living node -> when this was first seen
        self._started = False  # whether any bundle was ever reserved
        self._began = self._room_seen = time.monotonic()  # the start; the newest time with room for a worker

    def bundles(self) -> dict[Bundle, str]:
        """The reserved bundles on living nodes -> the id of their node."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return {
            Bundle(group, number): node
            for group in self._groups
            for number, node in sorted(placement_group_table(group)["bundles_to_node_id"].items())
            if node in alive
        }

    @property
    def size(self) -> int:
        """The number of reserved bundles."""
        return sum(group.bundle_count for group in self._groups)

    def wait(self, notify: Callable[[str], None]) -> None:
        """Waits for all bundles that fit; from SETTLE_SECONDS on, for any. Raises as `update`."""
        notice_at = self._began + FIRST_NOTICE_SECONDS
        while True:
            self.update()
            now = time.monotonic()
            fit = min(self.most, workers_that_fit(self.runtime, nodes_of_cluster()))
            if self.size and (self.size >= fit or now - self._began > SETTLE_SECONDS):
                return
            if now > notice_at:
                notice_at = now + NOTICE_SECONDS
                notify(
                    f"waiting for workers: {self.lack()}; without room for one, the run ends after "
                    f"{self.runtime.wait:g} s (runtime.wait)"
                )
            if self._requests:
                ray.wait(list(self._requests), timeout=1)
            else:
                time.sleep(1)

    def update(self) -> bool:
        """Requests the bundles that are missing; returns whether Ray has granted some since the last call.

        Raises RaylflError, or BadConfig before the first bundles, if there was no room for a worker for `runtime.wait`.
        """
        now, granted = time.monotonic(), list[Any]()
        if self._requests:
            granted, _ = ray.wait(list(self._requests), num_returns=len(self._requests), timeout=0)
        self._groups += [self._requests.pop(reference) for reference in granted]
        self._started = self._started or len(granted) > 0
        placed = self.bundles()
        living = {bundle.group for bundle in placed}
        self._lost_since = {group: at for group, at in self._lost_since.items() if group not in living}
        for group in [] if self.names else [group for group in self._groups if group not in living]:
            if now - self._lost_since.setdefault(group, now) > SETTLE_SECONDS:  # Ray has no other place for it
                remove_placement_group(group)
                self._groups.remove(group)
        self._ask(self._missing(self._check_room(now, len(placed)), now))
        return bool(granted)

    def _missing(self, fit: int, now: float) -> int:
        """The number of bundles that should be requested now; fit: the number of workers that fit on the cluster."""
        wanted = self.most - self.size
        if self.runtime.workers is not None or self.names or wanted <= 0:
            return max(0, wanted)
        at_start = now - self._began < SETTLE_SECONDS
        # as if all free resources were on one node
        free = fit - self.size if at_start else workers_that_fit(self.runtime, [ray.available_resources()])
        return min(wanted, free) if free > 0 else int(not self.size)

    def _check_room(self, now: float, placed: int) -> int:
        """Raises the errors of `update`; returns the number of workers that fit if nothing else runs on the cluster."""
        nodes = nodes_of_cluster()
        if not self._started and not self.runtime.wait:
            count_workers(self.runtime, self.most, nodes)
        fit = workers_that_fit(self.runtime, nodes)
        if (placed or fit) and not self._absent(nodes):
            self._room_seen = now
        elif now - self._room_seen >= self.runtime.wait:
            error = RaylflError if self._started else BadConfig
            raise error(f"no room for a worker for {self.runtime.wait:g} s (runtime.wait): {self.lack()}")
        return fit

    def _absent(self, nodes: Sequence[Resources]) -> list[str]:
        """The names that no node has."""
        return sorted({name for name in self.names if name and not any(name in node for node in nodes)})

    def _ask(self, size: int) -> None:
        """Adds requests, or withdraws the newest ones, so that this many bundles are requested."""
        while len(self._requests) > size:
            remove_placement_group(self._requests.popitem()[1])
        while len(self._requests) < (min(size, 1) if self.names else size):
            each = [bundle_of(self.runtime) | ({name: NODE_SHARE} if name else {}) for name in self.names or [None]]
            group = placement_group(each, strategy="SPREAD")
            self._requests[group.ready()] = group

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
        for group in (*self._requests.values(), *self._groups):
            remove_placement_group(group)
