"""Which samples a client sees at which local step, and the mini-batches of a micro-cohort made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raylfl.core.keyed import Keyed
from raylfl.core.oracle import Batch
from raylfl.core.population import Ints
from raylfl.core.samples import BatchSource, EvenBatches

AHEAD = 8 * 2**20  # bytes of samples that are gathered in one go for a lone client's next steps


class BatchOrder:
    """Which samples client i sees at local step t of round r.

    reshuffle: a fresh permutation of its n_i samples an epoch, cut into batches (the last one may be smaller),
    starting anew every round; with_replacement: B samples drawn uniformly. A batch as large as the shard is the
    shard itself, in order.
    """

    def __init__(
        self, seed: int, r: int, client: int, shard: Ints, batch_size: int, sampling: str, keyed: Keyed | None = None
    ):
        """keyed: where the caller has one for many clients."""
        self.key, self.shard, self.size, self.sampling = (seed, r, client), shard, batch_size, sampling
        self.keyed = keyed or Keyed()
        self.batches_per_epoch = max(1, -(-len(shard) // batch_size)) if batch_size else 1
        self.whole = batch_size >= len(shard) and sampling == "reshuffle"  # every batch is the whole shard
        self._epoch, self._order = -1, shard

    def indices(self, t: int) -> Ints:
        """Indices into the data set of the batch of local step t."""
        if self.whole:
            return self.shard
        if self.sampling == "with_replacement":
            seed, r, client = self.key
            return self.shard[self.keyed(seed, "batches", r, client, t).integers(len(self.shard), size=self.size)]
        epoch, part = self.place(t)
        return self.epoch(epoch)[part]

    def place(self, t: int) -> tuple[int, slice]:
        """(epoch, part of its order) that local step t's batch is."""
        epoch, at = divmod(t, self.batches_per_epoch)
        return epoch, slice(at * self.size, (at + 1) * self.size)

    def epoch(self, number: int) -> Ints:
        """All samples in the order of this epoch."""
        if number != self._epoch:
            seed, r, client = self.key
            self._order = self.shard[self.keyed(seed, "batches", r, client, number).permutation(len(self.shard))]
            self._epoch = number
        return self._order


class CohortBatches:
    """The mini-batches of a micro-cohort in one round: `batches(t, rows)`, a function of (seed, round, client, t)."""

    def __init__(
        self,
        source: BatchSource,
        seed: int,
        r: int,
        clients: Sequence[int],
        shards: Sequence[Ints],
        batch_sizes: Sequence[int],
        steps: Sequence[int],
        sampling: str,
        keyed: Keyed,
    ):
        self.source, self.steps = source, steps
        self.orders = [
            BatchOrder(seed, r, c, shard, size, sampling, keyed)
            for c, shard, size in zip(clients, shards, batch_sizes, strict=True)
        ]
        self._whole: dict[int, Batch] = {}  # whole shards, gathered once
        self._ready: dict[int, Batch] = {}  # by step, of a lone client
        self._cut = source.plain and not all(order.whole for order in self.orders)
        shapes = {(len(order.shard), order.size) for order in self.orders}
        self._alike = sampling == "reshuffle" and len(shapes) == 1
        self._epoch, self._epochs = -1, np.empty((0, 0), dtype=np.int64)  # of clients alike: a row each

    def __call__(self, t: int, rows: Sequence[int]) -> Sequence[Batch]:
        """The batches of local step t for these rows of the cohort."""
        if not self._cut:
            return [self._batch(k, t) for k in rows]
        if len(self.orders) == 1:
            return [self._ahead(t)]
        if self._alike:
            return EvenBatches(self.source, self._of_epoch(t)[rows])
        indices = [self.orders[k].indices(t) for k in rows]
        if len(set(map(len, indices))) == 1:
            return EvenBatches(self.source, np.concatenate(indices).reshape(len(rows), -1))
        return [self.source.batch(at) for at in indices]

    def _of_epoch(self, t: int) -> Ints:
        """Step t's batches of all clients [C, B], where they have equally many samples and batches of one size."""
        epoch, part = self.orders[0].place(t)
        if epoch != self._epoch:
            self._epoch, self._epochs = epoch, np.stack([order.epoch(epoch) for order in self.orders])
        return self._epochs[:, part]

    def full(self) -> list[Batch]:
        """Each client's whole shard."""
        return [self.source.batch(order.shard) for order in self.orders]

    def _batch(self, k: int, t: int) -> Batch:
        order = self.orders[k]
        if not (order.whole and self.source.plain):  # random augmentation differs from step to step
            return self.source.batch(order.indices(t))
        if k not in self._whole:
            self._whole[k] = self.source.batch(order.shard)
        return self._whole[k]

    def _ahead(self, t: int) -> Batch:
        """A lone client's batches of the next steps come out of one gather."""
        if t not in self._ready:
            order = self.orders[0]
            many = max(1, AHEAD // max(1, order.size * self.source.sample_bytes))
            steps = range(t, max(t + 1, min(t + many, self.steps[0])))
            batches = self.source.batches([order.indices(step) for step in steps])
            self._ready = dict(zip(steps, batches, strict=True))
        return self._ready.pop(t)
