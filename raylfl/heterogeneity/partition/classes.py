"""Partitions with few labels per client.

classes: a fixed number of classes per client, each class divided evenly (Li, Diao, Chen & He, "Federated learning on
non-IID data silos", ICDE 2022, "#C = k"). exdir: a fixed number of classes per client, each class divided in Dirichlet
proportions (Li & Lyu, "Convergence analysis of sequential federated learning on heterogeneous data", NeurIPS 2023, App.
G.1; details that the paper leaves open, redraws and the cap, follow its published code). shards: the pathological
non-IID partition of the FedAvg paper (McMahan et al., AISTATS 2017, Sec. 3).
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from raylfl.components.options import Ge, Gt
from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.errors import BadValue
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import check_min_size, deal, dirichlet_counts, grouped, redraw

REALLOCATIONS = 300  # draws of the classes before rare classes are completed by exchanges


@PARTITIONS.register("classes", paper="Li et al. 2022")
@dataclass
class Classes(Partition):
    """C random classes per client, the samples of a class split evenly over its clients.

    As in the paper's code, the K classes are first dealt to the N clients in turn (here in random order): each class
    has an owner. The other classes of a client are random. With C = 1 and N a multiple of K, every class has N/K
    clients, as in FedACS's MNIST experiment with 20 clients. A class with fewer samples than clients leaves some of
    them without it.
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


@PARTITIONS.register("exdir", paper="Li & Lyu 2023 (SFL), App. G.1")
@dataclass
class ExDir(Partition):
    """C random classes per client, then Dirichlet proportions over the clients of each class.

    1. Each of the N clients gets C of the K classes at random. This is redrawn until every class has at least
       max(floor(C N / (5 K)), 1) clients; after 300 draws, exchanges between clients complete the rare classes.
    2. Each class in turn is divided over its clients in proportions ~ Dir(alpha * 1). A client that already has n/N
       samples (the cap, where n is the number of samples of all clients) gets no more. This is redrawn until every
       client has min_size samples.

    Every sample has an owner. If all clients of a class have reached the cap, they share the class as if there were no
    cap; the published code instead gives the whole class to the last client.
    """

    classes: Annotated[int, Ge(1)] = 2  # classes per client C; in the paper C = 1 and 2, with alpha = 10
    alpha: Annotated[float, Gt(0)] = 10.0  # concentration of step 2; small: unequal owners of a class
    min_size: Annotated[int, Ge(0)] = 10  # the smallest number of samples of a client

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        check_classes(self.classes, num_clients, samples.num_classes)
        check_min_size(self.min_size, samples.count, num_clients)
        owned = allocate_enough(self.classes, num_clients, samples.num_classes, rng)
        cap = samples.count / num_clients
        draw = partial(dirichlet_counts, samples.class_sizes, self.alpha, owned, cap, rng)
        return deal(redraw(draw, self.min_size, self.alpha), samples.codes, rng)


def allocate_enough(classes: int, num_clients: int, num_classes: int, rng: np.random.Generator) -> Bools:
    """The C = classes random classes of each client (step 1 of ExDir), as a mask, bool [N, K].

    Rows are the N = num_clients clients, columns the K = num_classes classes. Each class has at least
    max(floor(C N / (5 K)), 1) clients. Redrawing alone would take 10^42 draws for C = 1, N = K = 100. In the last of
    REALLOCATIONS draws, a random client of the most common class therefore exchanges it for the rarest class, until
    every class has enough clients.
    """
    fewest = max(classes * num_clients // (5 * num_classes), 1)
    for _ in range(REALLOCATIONS):
        owned = smallest(rng.random((num_clients, num_classes)), classes)
        if owned.sum(axis=0).min() >= fewest:
            return owned
    while (holders := owned.sum(axis=0)).min() < fewest:
        rare = rng.choice(np.flatnonzero(holders == holders.min()))
        common = rng.choice(np.flatnonzero(holders == holders.max()))
        giver = rng.choice(np.flatnonzero(owned[:, common] & ~owned[:, rare]))
        owned[giver, [rare, common]] = True, False
    return owned


def smallest(keys: Floats, count: int) -> Bools:
    """The mask of the `count` smallest entries in each row of the matrix `keys`, in the shape of `keys`."""
    chosen = np.zeros(keys.shape, dtype=bool)
    np.put_along_axis(chosen, keys.argpartition(count - 1, axis=1)[:, :count], True, axis=1)
    return chosen


def check_classes(classes: int, num_clients: int, num_classes: int) -> None:
    """Checks that each client can own `classes` of the `num_classes` labels, and all clients together all of them.

    Raises BadValue.
    """
    fewest = -(-num_classes // num_clients)
    need = f"{fewest}..{num_classes}"
    if classes > num_classes:
        need += ", the labels in this data"
        raise BadValue("classes", got=classes, need=need, hint="dirichlet has no such bound")
    if classes < fewest:
        need += f", for num_clients={num_clients} to own all {num_classes} labels in this data"
        raise BadValue("classes", got=classes, need=need, hint="or raise num_clients")
