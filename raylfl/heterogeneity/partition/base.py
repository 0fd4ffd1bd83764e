"""The base class of partitions, which assign each training sample to one client or drop it.

There are n samples, N clients and K distinct labels. A partition computes the owner of each sample [n]: a client id, or
-1 for a dropped sample. `Split` holds the same information by client: N ascending lists of sample indices.

Impossible options raise BadValue. The error's key is an option of the partition ("alpha", "min_size"), or "name" if the
data cannot be partitioned this way. Callers add the prefix "partition." to these keys. The key can also be the
top-level config key "num_clients", which gets no prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated

import numpy as np

from raylfl.components.options import Doc, Options
from raylfl.components.registry import Registry
from raylfl.core.arrays import Ints
from raylfl.core.keyed import keyed
from raylfl.errors import BadValue

PARTITIONS: Registry[Partition] = Registry("partitions", "raylfl.heterogeneity.partition", lambda: Partition)


@dataclass(frozen=True, eq=False)
class Samples:
    """The properties of the training data that a partition can use.

    count: the number of samples n. labels: int64 [n], any integers; None: unlabelled data. owners: the sample indices
    of each client that the data source itself defines (writers, hospitals); None if it defines no clients. read: reads
    the labels, or raises BadValue, when they are first needed; None: `labels` is all there is.
    """

    count: int
    labels: Ints | None = None
    owners: Sequence[Ints] | None = None
    read: Callable[[], Ints] | None = None

    def __post_init__(self) -> None:
        assert self.labels is None or np.shape(self.labels) == (self.count,)

    def require_labels(self) -> Ints:
        """The labels of the n samples [n]. Raises BadValue for unlabelled data."""
        if self.labels is None:
            if self.read is None:
                raise self.unlabelled()
            object.__setattr__(self, "labels", self.read())
        assert self.labels is not None
        return self.labels

    @staticmethod
    def unlabelled() -> BadValue:
        """The error for a partition by label of unlabelled data."""
        need = "iid, quantity, natural or file: this data has no labels"
        hint = "partition.labels names the column or attribute that has them"
        return BadValue("name", got="a partition by label", need=need, hint=hint)

    @cached_property
    def _coded(self) -> tuple[Ints, Ints, Ints]:
        return np.unique(self.require_labels(), return_inverse=True, return_counts=True)

    @property
    def classes(self) -> Ints:
        """The K distinct labels, ascending [K]."""
        return self._coded[0]

    @property
    def num_classes(self) -> int:
        """The number K of distinct labels."""
        return len(self.classes)

    @property
    def codes(self) -> Ints:
        """The label of each of the n samples as its position in `classes`, 0..K-1 [n]."""
        return self._coded[1]

    @property
    def class_sizes(self) -> Ints:
        """The number of samples of each of the K classes, in the order of `classes` [K]."""
        return self._coded[2]


@dataclass(frozen=True, eq=False)
class Split:
    """The samples of each client.

    clients: the sample indices of each of the N clients, disjoint, each list int64 and ascending. dropped: the number
    of samples that no client owns.
    """

    clients: list[Ints]
    dropped: int = 0

    @staticmethod
    def of(owner: Ints, num_clients: int) -> Split:
        """The split of n samples over N = num_clients clients, from the owner of each sample.

        owner: client ids 0..N-1, or -1 for a dropped sample, [n].
        """
        order = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner + 1, minlength=num_clients + 1))
        clients = [order[start:end] for start, end in pairwise(ends)]
        return Split(clients, dropped=int(ends[0]))

    @property
    def sizes(self) -> Ints:
        """The number of samples of each of the N clients, int64 [N]."""
        return np.array([len(indices) for indices in self.clients], dtype=np.int64)


@dataclass
class Partition(Options, ABC):
    """A rule that divides training samples over clients. Subclasses are dataclasses whose fields are the options."""

    labels: Annotated[
        int | str | None,
        Doc("the labels: a column of the samples (0, 1, ...), or an attribute or key; null: the one integer column"),
    ] = field(default=None, kw_only=True)

    def split(self, samples: Samples, num_clients: int, seed: int) -> Split:
        """The split of the samples over `num_clients` clients, a function of the arguments and the options.

        Raises BadValue, which names the option to change, if the options allow no split.
        """
        if not 1 <= num_clients <= samples.count:
            need = f"1..{samples.count}, the samples in this data"
            raise BadValue("num_clients", got=num_clients, need=need)
        if (fixed := self.fixed_clients(samples)) not in (None, num_clients):
            need = f"{fixed} or null, the number of clients of this partition ({type(self).__name__.lower()})"
            raise BadValue("num_clients", got=num_clients, need=need)
        owner = np.asarray(self.assign(samples, num_clients, keyed(seed, "partition")))
        if owner.shape != (samples.count,) or not np.issubdtype(owner.dtype, np.integer):
            given = f"{owner.dtype} {owner.shape}"
        elif owner.min() < -1 or owner.max() >= num_clients:
            given = f"owners {owner.min()}..{owner.max()}"
        else:
            return Split.of(owner, num_clients)
        need = f"the owner of each of the {samples.count} samples, an integer in 0..{num_clients - 1}, or -1"
        raise BadValue("", got=f"{type(self).__name__}.assign returned {given}", need=need)

    def fixed_clients(self, samples: Samples) -> int | None:
        """The number of clients if the partition determines it (num_clients may then be null); None: any number."""
        return None

    @abstractmethod
    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        """The owner of each of the n samples, int64 [n]: a client id 0..num_clients-1, or -1 for a dropped sample.

        Raises BadValue if the options do not fit the data. rng: for all random draws.
        """
