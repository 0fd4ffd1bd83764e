"""The contract of a partition, which gives every training sample an owner.

There are n samples, N clients and K distinct labels. A partition fills one vector owner [n] with client ids; -1 is a
dropped sample. `Split` holds the same information by client: N ascending index lists.

Impossible options raise BadValue. Its key is an option of the partition ("alpha", "min_size"), or "name" if the data
cannot be partitioned this way at all, or "num_clients", a top-level key that callers do not prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from raylfl.core.keyed import keyed
from raylfl.core.population import Ints
from raylfl.errors import BadValue
from raylfl.options import Options
from raylfl.registry import Registry

PARTITIONS: Registry[Partition] = Registry("partitions", "raylfl.heterogeneity.partition", lambda: Partition)


@dataclass(frozen=True, eq=False)
class Samples:
    """The properties of the training data that a partition can use.

    count: n. labels: int64 [n], any integers; None: unlabelled data. owners: index lists of the clients that the data
    source itself defines; None if it defines none.
    """

    count: int
    labels: Ints | None = None
    owners: Sequence[Ints] | None = None

    def __post_init__(self) -> None:
        assert self.labels is None or np.shape(self.labels) == (self.count,)

    def require_labels(self) -> Ints:
        """The labels [n]. Raises BadValue for unlabelled data."""
        if self.labels is None:
            need = "iid, quantity, natural or file: this data has no labels"
            raise BadValue("name", got="a partition by label", need=need)
        return self.labels

    @cached_property
    def _coded(self) -> tuple[Ints, Ints, Ints]:
        return np.unique(self.require_labels(), return_inverse=True, return_counts=True)

    @property
    def classes(self) -> Ints:
        """The distinct labels, ascending [K]."""
        return self._coded[0]

    @property
    def num_classes(self) -> int:
        """The number K of distinct labels."""
        return len(self.classes)

    @property
    def codes(self) -> Ints:
        """Labels as positions in `classes`, 0..K-1 [n]."""
        return self._coded[1]

    @property
    def class_sizes(self) -> Ints:
        """Numbers n_c of samples of each class [K]."""
        return self._coded[2]


@dataclass(frozen=True, eq=False)
class Split:
    """The samples of each client.

    clients: N disjoint index lists, each int64 and ascending. dropped: samples that no client owns.
    """

    clients: list[Ints]
    dropped: int = 0

    @staticmethod
    def of(owner: Ints, num_clients: int) -> Split:
        """A split from the owner of each sample [n]; -1: dropped."""
        order = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner + 1, minlength=num_clients + 1))
        clients = [order[start:end] for start, end in pairwise(ends)]
        return Split(clients, dropped=int(ends[0]))

    @property
    def sizes(self) -> Ints:
        """Numbers n_i of samples of each client [N]."""
        return np.array([len(indices) for indices in self.clients], dtype=np.int64)


class Partition(Options, ABC):
    """A way to divide data over clients. Subclasses are dataclasses whose fields are the options."""

    def split(self, samples: Samples, num_clients: int, seed: int) -> Split:
        """The split of the samples over N clients, a function of the arguments and the options.

        Raises BadValue, which names the option to change, if there is no such split.
        """
        if not 1 <= num_clients <= samples.count:
            need = f"1..{samples.count}, the samples in this data"
            raise BadValue("num_clients", got=num_clients, need=need)
        return Split.of(self.assign(samples, num_clients, keyed(seed, "partition")), num_clients)

    def fixed_clients(self, samples: Samples) -> int | None:
        """The number of clients N if the partition determines it, so that num_clients may be null; None: any N."""
        return None

    @abstractmethod
    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        """The owner of each sample, int64 [n] of 0..N-1; -1: the sample is dropped."""
