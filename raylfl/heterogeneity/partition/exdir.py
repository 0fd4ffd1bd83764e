"""Extended Dirichlet partition, ExDir(C, alpha): first the classes of each client, then their proportions.

Li & Lyu, "Convergence analysis of sequential federated learning on heterogeneous data", NeurIPS 2023,
App. G.1. Details that the paper leaves open (redraws, the cap) follow its published code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from raylfl.core.population import Bools, Ints
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import (
    check_classes,
    check_min_size,
    deal,
    dirichlet_counts,
    redraw,
    smallest,
)
from raylfl.options import Ge, Gt

REALLOCATIONS = 300  # draws of the classes before rare classes are completed by exchanges


@PARTITIONS.register("exdir", paper="Li & Lyu 2023 (SFL), App. G.1")
@dataclass
class ExDir(Partition):
    """C random classes per client, then Dirichlet over the owners of each class.

    1. Each client gets C distinct random classes, redrawn until every class has at least
       max(floor(C N / (5 K)), 1) clients (after 300 draws, rare classes are completed by exchanges).
    2. For each class c in turn: its samples in proportions p_c ~ Dir(alpha * 1) over its clients without those that
       already have n/N samples (the cap). Redrawn until every client has min_size samples.

    Every sample has an owner. If all clients of a class have reached the cap, they share the class as if there were no
    cap; the published code then gives the whole class to the last client.
    """

    classes: Annotated[int, Ge(1)] = 2  # classes per client C; in the paper C = 1 and 2, with alpha = 10
    alpha: Annotated[float, Gt(0)] = 10.0  # concentration of step 2; small: unequal owners of a class
    min_size: Annotated[int, Ge(0)] = 10  # the smallest number of samples of a client

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        check_classes(self.classes, num_clients, samples.num_classes)
        check_min_size(self.min_size, samples.count, num_clients)
        owned = allocate(self.classes, num_clients, samples.num_classes, rng)
        cap = samples.count / num_clients

        def draw() -> Ints:
            return dirichlet_counts(samples.class_sizes, self.alpha, owned, cap, rng)

        return deal(redraw(draw, self.min_size, self.alpha), samples.codes, rng)


def allocate(classes: int, num_clients: int, num_classes: int, rng: np.random.Generator) -> Bools:
    """The classes of each client (step 1 of ExDir), as a mask owned [N, K] with C = classes random ones in each row.

    Each class has at least max(floor(C N / (5 K)), 1) clients. Redrawing alone would take 10^42 draws for C = 1, 100
    clients and 100 classes. After REALLOCATIONS draws the last one is completed: a random client of the most common
    class exchanges it for the rarest class, and so on.
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
