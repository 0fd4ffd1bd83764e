"""Batch orders (which samples a client uses in which local step) and the mini-batches of a micro-cohort.

A micro-cohort is a group of the round's clients whose local work is one task.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raylfl.core.arrays import Ints
from raylfl.core.keyed import keyed_words
from raylfl.core.oracle import Batch
from raylfl.core.samples import BatchSource, EvenBatches, IndexedBatch
from raylfl.replay.innermost.steps import takes
from raylfl.replay.innermost.translation import IGNORED

MOST_FILLED = 2  # largest ratio of all samples to real samples in filled-up batches; else one call per batch size
AHEAD = 8 * 2**20  # bytes of samples gathered in advance for the next steps of a single client


class BatchOrders:
    """The order in which the clients of a micro-cohort (the clients of one task) use their samples in a round.

    A client's shard is its n_i samples; B_i is its batch size. With sampling `reshuffle`, each epoch of each round has
    a new permutation of the shard, cut into batches of B_i samples (the last one may be smaller); if B_i >= n_i, every
    batch is the whole shard, not permuted. With sampling `with_replacement`, a batch is B_i samples drawn uniformly. A
    client's batches do not depend on the other clients. whole_shards: whether every batch is a whole shard.
    """

    def __init__(
        self, seed: int, r: int, clients: Sequence[int], shards: Sequence[Ints], sizes: Sequence[int], sampling: str
    ):
        """Batch orders of these clients in round r.

        seed: the seed of the run. shards: the sample indices of each client. sizes: the batch sizes B_i. sampling:
        `reshuffle` or `with_replacement`.
        """
        self.key, self.clients, self.sampling = (seed, "batches", r), np.array(clients), sampling
        self.shards, self.sizes = shards, sizes
        self.samples, self.size = np.concatenate(shards), np.array(sizes)
        counts = list(map(len, shards))
        self.count = np.array(counts)
        self.alike = len(set(zip(counts, sizes, strict=True))) == 1  # arrays then have a row per client
        ends = self.count.cumsum()
        self.start = ends - self.count
        fixed = sampling == "reshuffle" and (self.size >= self.count)
        self.whole_shards = bool(np.all(fixed))
        # 0: the only batch is the whole shard, which is not shuffled
        self.batches_per_epoch = np.where(fixed, 0, np.maximum(1, -(-self.count // np.maximum(self.size, 1)))).tolist()
        self._epoch = [-1] * len(shards)  # -1: not shuffled
        self._order = self.samples.copy()
        self._orders = [self._order[a:b] for a, b in zip(self.start.tolist(), ends.tolist(), strict=True)]

    def indices(self, t: int, rows: Sequence[int]) -> Sequence[Ints] | Ints:
        """The sample indices of the batches of local step t, for the clients at the positions `rows` of `clients`.

        The result is one array [len(rows), B] if all shards and batch sizes are alike, else a list of arrays.
        """
        if self.sampling == "with_replacement":
            return self._draw(t, np.asarray(rows))
        per_epoch, sizes = self.batches_per_epoch, self.sizes
        some = rows[:1] if self.alike else rows  # clients alike are shuffled together
        if stale := [k for k in some if per_epoch[k] and t // per_epoch[k] != self._epoch[k]]:
            self._shuffle(range(len(sizes)) if self.alike else stale, t)
        if self.alike:  # slices of one table
            first = t % (per_epoch[0] or 1) * sizes[0]
            table: Ints = self._order.reshape(len(sizes), -1)
            return table[np.asarray(rows), first : first + sizes[0]]
        firsts = [t % (per_epoch[k] or 1) * sizes[k] for k in rows]
        return [self._orders[k][a : a + sizes[k]].copy() for k, a in zip(rows, firsts, strict=True)]

    def _shuffle(self, clients: Sequence[int], t: int) -> None:
        """Permutes the samples of each client in `clients` into their order in the client's epoch at local step t."""
        for k in clients:
            self._epoch[k] = t // self.batches_per_epoch[k]
        rows, epochs = np.array(clients), np.array([self._epoch[k] for k in clients])
        owner, positions = self._entries(self.count[rows])
        keys = sort_keys(keyed_words(*self.key, self.clients[rows][owner], epochs[owner], positions), positions)
        mine = self.start[rows][owner] + positions
        order = mine[owner, keys.argsort(axis=1)] if self.alike else mine[np.lexsort((keys, owner))]
        self._order[mine] = self.samples[order]

    def _draw(self, t: int, rows: Ints) -> Sequence[Ints] | Ints:
        owner, positions = self._entries(self.size[rows])
        words = keyed_words(*self.key, self.clients[rows][owner], t, positions)
        samples = self.samples[self.start[rows][owner] + below(self.count[rows][owner], words)]
        return samples if self.alike else np.split(samples, np.cumsum(self.size[rows])[:-1])

    def _entries(self, lengths: Ints) -> tuple[Ints, Ints]:
        """`runs` of these lengths; for clients alike, arrays [C, 1] and [length] in place of C times length numbers."""
        return (np.arange(len(lengths))[:, None], np.arange(lengths[0])) if self.alike else runs(lengths)


def sort_keys(words: np.ndarray, positions: Ints) -> np.ndarray:
    """Distinct random sort keys; sorting the entries of a sequence by their keys permutes them at random.

    A key is a uint64 number: 32 random bits, followed by the entry's position. words: one random uint64 number per
    entry. positions: the position 0, 1, ... of each entry in its sequence.
    """
    return words >> 32 << 32 | positions.astype(np.uint64)


def below(count: Ints | int, words: np.ndarray) -> Ints:
    """Random integers in 0..count-1, one from each random uint64 word; the relative bias is at most count / 2^32."""
    return ((words >> 32) * np.asarray(count, dtype=np.uint64) >> 32).astype(np.int64)


def runs(lengths: Ints) -> tuple[Ints, Ints]:
    """(segment number, position in the segment) of every entry of consecutive segments with these lengths.

    >>> [a.tolist() for a in runs(np.array([2, 3]))]
    [[0, 0, 1, 1, 1], [0, 1, 0, 1, 2]]
    """
    owner = np.arange(len(lengths)).repeat(lengths)
    return owner, np.arange(len(owner)) - (lengths.cumsum() - lengths)[owner]


class CohortBatches:
    """The mini-batches of a micro-cohort (the clients of one task) in a round, called as `batches(t, rows)`.

    A batch is a function of (seed, round, client, t).
    """

    def __init__(self, source: BatchSource, orders: BatchOrders, steps: Sequence[int]):
        """Batches from this source in these orders.

        steps: the number of local steps K_i of each client, beyond which no batch is gathered in advance.
        """
        self.source, self.orders, self.steps = source, orders, steps
        self._gathered: dict[int, Batch] = {}  # whole shards, gathered once
        self._ready: dict[int, Batch] = {}  # a single client's batches gathered in advance, by local step

    def __call__(self, t: int, rows: Sequence[int]) -> Sequence[Batch]:
        """The batches of local step t, for the clients at the positions `rows` of `orders.clients`."""
        plain = self.source.plain
        if plain and self.orders.whole_shards:
            return [self._whole(k) for k in rows]
        if plain and len(self.orders.shards) == 1 and self.source.device.type == "cpu":
            return [self._ahead(t)]
        indices = self.orders.indices(t, rows)
        if plain and (isinstance(indices, np.ndarray) or len(set(map(len, indices))) == 1):
            return EvenBatches(self.source, np.asarray(indices))
        return [self.source.batch(batch) for batch in indices]

    def full(self) -> list[Batch]:
        """All samples of each client, as one batch per client."""
        return [self.source.batch(shard) for shard in self.orders.shards]

    def _whole(self, k: int) -> Batch:
        if k not in self._gathered:
            self._gathered[k] = self.source.batch(self.orders.shards[k])
        else:
            self._gathered[k].fresh()  # a step may have changed its batch in place
        return self._gathered[k]

    def _ahead(self, t: int) -> Batch:
        """The batch of local step t, for a micro-cohort of one client; also gathers the batches of the next steps."""
        if t not in self._ready:
            many = max(1, AHEAD // max(1, self.orders.sizes[0] * self.source.sample_bytes))
            steps = range(t, max(t + 1, min(t + many, self.steps[0])))
            batches = self.source.batches([self.orders.indices(step, [0])[0] for step in steps])
            self._ready = dict(zip(steps, batches, strict=True))
        return self._ready.pop(t)


def fill_up(batches: Sequence[Batch], sizes: Sequence[int]) -> tuple[Tensor, ...] | None:
    """Batches (inputs, labels) of unequal sizes as two tensors [C, B, ...], in which shorter batches are filled up.

    A batch is filled up with copies of its first sample and the label `IGNORED`, which cross-entropy leaves out. sizes:
    the number of samples of each batch. Returns None for batches of another form, empty batches, batches that are not
    from one `BatchSource` that is `plain`, and sizes so unequal that one forward pass per size is less work.
    """
    indexed = IndexedBatch.of_one_source(batches)
    if (
        not indexed
        or not indexed[0].source.plain
        or min(sizes) == 0
        or len(sizes) * max(sizes) > MOST_FILLED * sum(sizes)
    ):
        return None
    indices = np.empty((len(indexed), max(sizes)), dtype=np.int64)
    for row, b in zip(indices, indexed, strict=True):
        row[: b.size], row[b.size :] = b.indices, b.indices[0]
    content = EvenBatches(indexed[0].source, indices).stack()
    if not takes(content, ndim=2):
        return None
    content[1][torch.from_numpy(np.arange(indices.shape[1]) >= np.array(sizes)[:, None])] = IGNORED
    return content


def stack_batches(batches: Sequence[Batch]) -> tuple[Tensor, ...]:
    """Batches of equal size as tensors [C, B, ...], read by one call of `gather` if all come from one source."""
    if isinstance(batches, EvenBatches):
        return batches.stack()
    together = IndexedBatch.together(batches)
    if together is not None:
        return tuple(t.unflatten(0, (len(batches), -1)) for t in together)
    return tuple(torch.stack(parts) for parts in zip(*(b.content for b in batches), strict=True))
