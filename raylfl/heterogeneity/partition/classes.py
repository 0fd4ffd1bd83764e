"""Partitions with few labels per client.

classes: a fixed number of classes per client, each class divided evenly (Li, Diao, Chen & He, "Federated learning on
non-IID data silos", ICDE 2022, "#C = k"). shards: the pathological non-IID partition of the FedAvg paper (McMahan et
al., AISTATS 2017, Sec. 3).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from raylfl.components.options import Ge
from raylfl.core.arrays import Bools, Ints
from raylfl.errors import BadValue
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import check_classes, deal, grouped, smallest


@PARTITIONS.register("classes", paper="Li et al. 2022")
@dataclass
class Classes(Partition):
    """C random classes per client, the samples of a class split evenly over its clients.

    As in the paper's code, the K classes are first dealt to the N clients in turn (here in random order): each class
    has an owner. The other classes of a client are random. With C = 1 and N a multiple of K, every class has N/K
    clients, as in FedACS's MNIST experiment with 20 clients.
    """

    classes: Annotated[int, Ge(1)] = 1  # classes per client C

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        check_classes(self.classes, num_clients, samples.num_classes)
        owned = allocate(self.classes, num_clients, samples.num_classes, rng)
        # The j-th of a class's m clients gets floor(n_c j / m) - floor(n_c (j-1) / m) samples.
        rank, holders = np.cumsum(owned, axis=0), owned.sum(axis=0)
        ends = samples.class_sizes * rank // holders
        counts = np.diff(ends, axis=0, prepend=0)
        if counts.sum(axis=1).min() == 0:
            need = "smaller: some label has fewer samples than clients that share it"
            raise BadValue("num_clients", got=num_clients, need=need, hint="or raise classes")
        return deal(counts, samples.codes, rng)


def allocate(classes: int, num_clients: int, num_classes: int, rng: np.random.Generator) -> Bools:
    """A random allocation of K = num_classes classes to N = num_clients clients, as a mask, bool [N, K].

    Each client (row) owns `classes` of the K classes, and each class (column) has at least one client. This requires
    ceil(K/N) <= classes <= K.
    """
    # For fewer clients than labels, ceil(K/N) <= C classes per client are dealt in turn, which covers all labels.
    turns = -(-num_classes // num_clients)
    seat = np.arange(turns)[:, None] * num_clients + rng.permutation(num_clients)
    key = rng.random((num_clients, num_classes))
    key[np.arange(num_clients), rng.permutation(num_classes)[seat % num_classes]] = -np.inf  # sure to be chosen
    return smallest(key, classes)


@PARTITIONS.register("shards", paper="McMahan et al. 2017")
@dataclass
class Shards(Partition):
    """Samples sorted by label and cut into N*s equal blocks, s random blocks for each of the N clients.

    FedAWARE's "Statistical Only" is 100 clients with 2 of 200 blocks each. To make the blocks equal, n mod (N*s) of the
    n samples are dropped at random. A block may hold samples of two or more labels: a client can have more than s
    labels.
    """

    shards_per_client: Annotated[int, Ge(1)] = 2  # blocks per client s

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        blocks = num_clients * self.shards_per_client
        size = samples.count // blocks
        if size == 0:
            most = samples.count // num_clients
            need = f"at most {most}: {samples.count} samples over num_clients={num_clients}"
            raise BadValue("shards_per_client", got=self.shards_per_client, need=need)
        by_label = grouped(samples.codes, rng)
        kept = np.sort(rng.permutation(samples.count)[: blocks * size])
        owner = np.full(samples.count, -1, dtype=np.int64)
        owner[by_label[kept]] = np.repeat(rng.permutation(blocks) // self.shards_per_client, size)
        return owner
