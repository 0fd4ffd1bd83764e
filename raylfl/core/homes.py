"""Homes of clients: the worker that holds a client's samples, under `runtime.placement=pinned`.

Rendezvous hashing with bounded loads: each client prefers the worker with the highest hash of (client, worker). Each
worker keeps the clients with the highest hashes until it has its share of the samples; the remaining clients go to
their next preference (Thaler & Ravishankar 1998; Mirrokni, Thorup & Zadimoghaddam 2018). A new worker therefore
attracts about its share of clients, and hardly any client moves between the old workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raylfl.core.keyed import splitmix64
from raylfl.core.population import Bools, Ints

SLACK = 0.05  # the fraction by which a worker of many small clients may exceed the mean load
STEP = np.uint64(0x9E3779B97F4A7C15)  # the distance between the hash inputs of consecutive clients
NOWHERE = np.iinfo(np.uint64).max  # the score of a client without a home so far


def assigned(sizes: Ints, workers: int) -> Ints:
    """The home of each client: the number of its worker, 0..workers - 1, int64 [N].

    It depends on the arguments only. sizes: samples of each client; an empty client counts as one sample. A worker's
    load is at most the larger of 1.05 times the mean and the mean plus its largest client. With at least as many
    workers as clients, each client has a worker of its own.

    >>> assigned(np.array([5, 5, 5, 5]), 2).tolist()
    [0, 0, 1, 1]
    """
    count = len(sizes)
    if workers >= count:
        return np.arange(count, dtype=np.int64)
    load = np.maximum(sizes, 1).astype(np.float64)
    mean = load.sum() / workers
    keys = splitmix64((np.arange(count, dtype=np.uint64) + np.uint64(1)) * STEP)
    home, score = np.zeros(count, dtype=np.int64), np.full(count, NOWHERE)
    moving = np.arange(count)
    while len(moving):
        home[moving], score[moving] = _next_preference(keys[moving], score[moving], workers)
        filling = np.flatnonzero(np.isin(home, home[moving]))
        order = filling[np.lexsort((~score[filling], home[filling]))]
        moving = order[_rejected(home[order], load[order], mean)]
    return home


def _next_preference(keys: Ints, below: Ints, workers: int) -> tuple[Ints, Ints]:
    """For each of these clients, the worker with the highest score below the client's bound, and this score.

    keys: a hash of each client. below: the bounds, each the score of the client's previous worker.
    """
    best, at = np.zeros_like(below), np.zeros(len(keys), dtype=np.int64)
    for w in range(workers):
        score = splitmix64(keys ^ splitmix64(np.array([w + 1], dtype=np.uint64)))
        better = (score > best) & (score < below)
        best[better], at[better] = score[better], w
    return at, best


def _rejected(home: Ints, load: np.ndarray, mean: float) -> Bools:
    """A mask of the clients that their worker refuses.

    home, load: of clients sorted by worker and falling score. mean: the mean load of all workers. A worker at the mean
    load or above refuses the first client that would raise its load above 1.05 times the mean, and all later ones.
    Together the workers have room for all clients, so that each client finds a worker.
    """
    start = np.flatnonzero(np.diff(home, prepend=-1))
    lengths = np.diff(start, append=len(home))
    before = np.cumsum(load) - load
    before -= np.repeat(before[start], lengths)
    full = (before >= mean) & (before + load > (1 + SLACK) * mean)
    count = np.cumsum(full)
    refused: Bools = count > np.repeat(count[start] - full[start], lengths)
    return refused


def shared_out(weights: Sequence[float], count: int) -> list[int]:
    """The number of workers of each group: `count` in all, divided by these weights, at least one for each group.

    The method is D'Hondt's highest averages.

    >>> shared_out([60, 30, 10], 5)
    [3, 1, 1]
    """
    assert len(weights) <= count
    given = [1] * len(weights)
    for _ in range(count - len(weights)):
        given[max(range(len(weights)), key=lambda k: weights[k] / given[k])] += 1
    return given


@dataclass(frozen=True)
class Homes:
    """The homes of a run's clients.

    home: worker of each client, int64 [N]. nodes: for each worker, the name of the cluster nodes that have its clients'
    data; None: any node.
    """

    home: Ints
    nodes: tuple[str | None, ...]

    @staticmethod
    def of(sizes: Ints, workers: int, nodes: Sequence[str] | None = None) -> Homes:
        """The homes of clients with these numbers of samples, on `workers` workers.

        nodes: for each client the name of the cluster nodes that have its samples; None: every node has all samples.
        There must be at least as many workers as names.
        """
        if nodes is None:
            return Homes(assigned(sizes, workers), (None,) * workers)
        names, group = np.unique(np.asarray(nodes), return_inverse=True)
        given = shared_out([float(sizes[group == k].sum()) for k in range(len(names))], workers)
        home, first = np.zeros(len(sizes), dtype=np.int64), 0
        for k, own in enumerate(given):
            home[group == k] = first + assigned(sizes[group == k], own)
            first += own
        return Homes(home, tuple(str(name) for name, own in zip(names, given, strict=True) for _ in range(own)))

    def clients(self, worker: int) -> Ints:
        """The clients whose home is this worker, ascending."""
        return np.flatnonzero(self.home == worker)

    def alternatives(self, worker: int) -> list[int]:
        """The workers that can do this worker's work, itself included: their nodes have the same data."""
        return [w for w, node in enumerate(self.nodes) if node == self.nodes[worker]]
