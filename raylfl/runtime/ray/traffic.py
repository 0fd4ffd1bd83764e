"""Counters of the bytes that are sent to workers and back."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.experimental import get_local_object_locations
from torch import Tensor

from raylfl.runtime.ray.connection import direct_bytes
from raylfl.runtime.workers.task import TaskResult

KEPT = 2**16  # number of objects whose nodes are remembered
SIZE_POLLS = 100  # milliseconds in which Ray must list the size of an object whose node it lists


@dataclass
class TrafficCounter:
    """Bytes sent to workers and received from them since the last `take`.

    A broadcast in the object store counts once; one that is copied into calls counts once per call. Repeated local work
    counts again. Tensors and reports are counted; the overhead of a call and the samples of assigned clients are not.

    here: the server's node. between_nodes: bytes sent from one cluster node to another: in calls, in results, and as
    objects that a node must fetch for a call because Ray lists no copy on this node.
    """

    here: str | None = None
    sent: int = 0
    received: int = 0
    between_nodes: int = 0
    _holders: dict[bytes, set[str | None]] = field(default_factory=dict)  # object -> nodes, as Ray lists them late

    def count(self, sent: int = 0, received: int = 0) -> None:
        """Adds bytes sent to workers and received from them."""
        self.sent += sent
        self.received += received

    def count_arguments(self, values: Sequence[Any], node: str | None) -> None:
        """Counts the bytes sent between nodes for the arguments of a call, values or references, on this node."""
        for value in values:
            if not isinstance(value, ray.ObjectRef):
                self.count_between(weight(value), self.here, node)
                continue
            places, size = located(value)
            if not places and size <= direct_bytes():  # a value in this process, sent within the call
                self.count_between(size, self.here, node)
                continue
            holders = self._holders.get(value.binary()) or {*places} or {self.here}
            if node not in holders.union(places):
                self._remember(value, holders | {node})
                self.between_nodes += size or awaited_size(value)

    def count_results(self, value: Any, others: Sequence[Any], node: str | None) -> None:
        """Counts the bytes sent between nodes for the results of a call on this node: a value, references to others.

        Small other results are sent at once, and counted. For large ones, only `node` is stored, because Ray may list
        their node late, or never if the node joined after a loss.
        """
        small = 0
        for other in others:
            places, size = located(other)
            if not places and 0 < size <= direct_bytes():
                small += size
            elif not places:
                self._remember(other, {node})
        self.count_between(weight(value) + small, node, self.here)

    def count_between(self, size: int, source: str | None, target: str | None) -> None:
        """Counts `size` bytes sent from node `source` to node `target`; nothing if they are the same node."""
        self.between_nodes += size * (source != target)

    def _remember(self, reference: Any, nodes: set[str | None]) -> None:
        self._holders[reference.binary()] = nodes
        if len(self._holders) > KEPT:
            del self._holders[next(iter(self._holders))]

    def take(self) -> dict[str, int]:
        """Returns the counters as metrics, and resets them to 0."""
        counts = {
            "traffic/sent_bytes": self.sent,
            "traffic/received_bytes": self.received,
            "traffic/between_nodes_bytes": self.between_nodes,
        }
        self.sent = self.received = self.between_nodes = 0
        return counts


def located(reference: Any) -> tuple[list[str], int]:
    """(nodes that have the object in their store, its bytes); ([], 0) before the object exists."""
    location = get_local_object_locations([reference])[reference]
    return location["node_ids"], location["object_size"] or 0


def awaited_size(reference: Any) -> int:
    """The bytes of an object whose size Ray does not list yet; 0 if it never does."""
    for _ in range(SIZE_POLLS):
        if size := located(reference)[1]:
            return size
        time.sleep(0.001)
    return 0


def weight(value: Any) -> int:
    """The bytes of all arrays and numbers in a value and its nested parts; references and texts count 0."""
    if isinstance(value, (np.ndarray, Tensor)):
        return int(value.nbytes)
    if isinstance(value, TaskResult):
        return weight((value.reports.rows, value.uploads, value.sums))
    if isinstance(value, (int, float)):
        return 8
    if isinstance(value, Mapping):
        return sum(map(weight, value.values()))
    return sum(map(weight, value)) if isinstance(value, (list, tuple)) else 0
