"""Extended Dirichlet partition, ExDir(C, alpha): first the classes of each client, then their proportions.

Li & Lyu, "Convergence analysis of sequential federated learning on heterogeneous data", NeurIPS 2023,
App. G.1. Details that the paper leaves open (redraws, the cap) follow its published code.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from raylfl.components.options import Ge, Gt
from raylfl.core.arrays import Bools, Ints
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import check_classes, check_min_size, deal, dirichlet_counts, redraw, smallest

REALLOCATIONS = 300  # draws of the classes before rare classes are completed by exchanges


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
        owned = allocate(self.classes, num_clients, samples.num_classes, rng)
        cap = samples.count / num_clients

        def draw() -> Ints:
            return dirichlet_counts(samples.class_sizes, self.alpha, owned, cap, rng)

        return deal(redraw(draw, self.min_size, self.alpha), samples.codes, rng)


def allocate(classes: int, num_clients: int, num_classes: int, rng: np.random.Generator) -> Bools:
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
