"""Where a run's clients run: `shared` and `pinned` of `runtime.placement`.

Pinned clients are assigned by rendezvous hashing with bounded loads (Thaler & Ravishankar 1998; Mirrokni, Thorup &
Zadimoghaddam 2018). Each client prefers the worker with the highest hash of (client, worker). Each worker accepts
clients in the order of falling hashes until it has its share of the samples; a client that is not accepted goes to its
next preference. If a worker is added, the new worker therefore gets about its share of clients, and hardly any client
moves between the old workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raylfl.core.arrays import Bools, Ints
from raylfl.core.keyed import GAMMA, splitmix64

SLACK = 0.05  # the fraction by which a worker of many small clients may exceed the mean load
NOWHERE = np.iinfo(np.uint64).max  # the score of a client that has not been assigned yet


def assign(sizes: Ints, workers: int) -> Ints:
    """The number of each client's worker, 0..workers - 1, int64 [N].

    The result depends on the arguments only. sizes: the number of samples of each client; a client without samples
    counts as one sample. A worker's load is at most the larger of 1.05 times the mean load and the mean load plus its
    largest client. With at least as many workers as clients, no two clients share a worker.

    >>> assign(np.array([5, 5, 5, 5]), 2).tolist()
    [0, 0, 1, 1]
    """
    count = len(sizes)
    if workers >= count:
        return np.arange(count)
    load = np.maximum(sizes, 1).astype(np.float64)
    mean = load.sum() / workers
    keys = splitmix64(np.arange(1, count + 1, dtype=np.uint64) * GAMMA)
    worker, score = np.zeros(count, dtype=np.int64), np.full(count, NOWHERE)
    moving = np.arange(count)
    while len(moving):
        worker[moving], score[moving] = _next_preference(keys[moving], score[moving], workers)
        filling = np.flatnonzero(np.isin(worker, worker[moving]))
        order = filling[np.lexsort((~score[filling], worker[filling]))]
        moving = order[_reject(worker[order], load[order], mean)]
    return worker


def _next_preference(keys: Ints, below: Ints, workers: int) -> tuple[Ints, Ints]:
    """(next worker, its score) of each client: the worker with the highest score below that of the previous worker.

    A score is a hash of (client, worker). keys: a hash of each client. below: the scores of their previous workers.
    """
    best, worker = np.zeros_like(below), np.zeros(len(keys), dtype=np.int64)
    for w in range(workers):
        score = splitmix64(keys ^ splitmix64(np.array([w + 1], dtype=np.uint64)))
        better = (score > best) & (score < below)
        best[better], worker[better] = score[better], w
    return worker, best


def _reject(worker: Ints, load: np.ndarray, mean: float) -> Bools:
    """A mask of the clients that their workers refuse.

    worker, load: of each client, sorted by worker and falling score. mean: of the loads of all workers. A worker
    accepts clients in this order while its load is below the mean. From then on, it refuses the first client that would
    raise its load above 1.05 times the mean, and all clients after it.
    """
    first = np.searchsorted(worker, worker)  # the place of each client's worker's first client
    earlier = np.cumsum(load) - load
    earlier -= earlier[first]
    full = (earlier >= mean) & (earlier + load > (1 + SLACK) * mean)
    count = np.cumsum(full)
    refused: Bools = count > (count - full)[first]
    return refused


def apportion(weights: Sequence[float], count: int) -> list[int]:
    """The number of workers of each group: `count` workers divided in proportion to the weights, at least one each.

    By D'Hondt's highest averages; there must be at least as many workers as groups.

    >>> apportion([60, 30, 10], 5)
    [3, 1, 1]
    """
    assert len(weights) <= count
    shares = [1] * len(weights)
    for _ in range(count - len(weights)):
        shares[max(range(len(weights)), key=lambda k: weights[k] / shares[k])] += 1
    return shares


@dataclass(frozen=True)
class Placement:
    """Where the clients of a run work.

    worker: the number of each pinned client's worker, the only one that reads the client's samples, int64 [N]; None if
    clients are not pinned: any worker can run any client. nodes: for each worker of pinned clients, the label of the
    cluster nodes that have the data of its clients; None: all nodes have them.
    """

    worker: Ints | None = None
    nodes: tuple[str | None, ...] = ()

    @staticmethod
    def pinned(sizes: Ints, workers: int, nodes: Sequence[str] | None = None) -> Placement:
        """The placement of clients with these numbers of samples, each pinned to one of `workers` workers.

        nodes: for each client, the label of the cluster nodes that have its samples, of which there may be at most
        `workers`; None: every node has all samples.
        """
        if nodes is None:
            return Placement(assign(sizes, workers), (None,) * workers)
        names, group = np.unique(np.asarray(nodes), return_inverse=True)
        counts = apportion([float(sizes[group == k].sum()) for k in range(len(names))], workers)
        worker, first = np.zeros(len(sizes), dtype=np.int64), 0
        for k, count in enumerate(counts):
            worker[group == k] = first + assign(sizes[group == k], count)
            first += count
        labels = tuple(str(name) for name, count in zip(names, counts, strict=True) for _ in range(count))
        return Placement(worker, labels)

    @property
    def name(self) -> str:
        return "shared" if self.worker is None else "pinned"

    def worker_of(self, client: int | None) -> int | None:
        """The worker of a pinned client; None if any worker can do the work, or for work of several clients (None)."""
        return None if self.worker is None or client is None else int(self.worker[client])

    def clients(self, worker: int) -> Ints:
        """The clients that are assigned to this worker, ascending."""
        return np.flatnonzero(self.worker == worker)

    def replacements(self, worker: int) -> list[int]:
        """The workers that can replace this one, itself included: all workers on nodes with the same data."""
        return [w for w, node in enumerate(self.nodes) if node == self.nodes[worker]]

    @property
    def nodes_apart(self) -> bool:
        """Whether clients' data are bound to certain nodes, which must not receive each other's uploads."""
        return any(self.nodes)


SHARED = Placement()
