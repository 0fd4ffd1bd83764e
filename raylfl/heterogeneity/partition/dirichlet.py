"""Dirichlet partition of each class over the clients: skewed labels and, as a consequence, skewed sizes.

Yurochkin et al., "Bayesian nonparametric federated learning of neural networks", ICML 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from raylfl.components.options import Ge, Gt
from raylfl.core.arrays import Ints
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import check_min_size, deal, dirichlet_counts, level, redraw


@PARTITIONS.register("dirichlet", paper="Yurochkin et al. 2019")
@dataclass
class Dirichlet(Partition):
    """Each class is divided over the N clients in proportions p ~ Dir(alpha * 1_N).

    alpha: concentration; if small, few clients hold most of a class. E[sum_i p_i^2] = (alpha + 1) / (N alpha + 1).
    min_size: the partition is redrawn until every client has this many samples; 0 allows clients without samples.
    balance: `none` keeps the sizes as drawn. With `cap`, a client with n/N samples or more (n samples of all clients)
    gets no further class, as in the paper's published code. With `equal`, random samples move from larger to smaller
    clients after a single draw, until sizes differ by at most one.
    """

    alpha: Annotated[float, Gt(0)] = 0.1  # as in FedACS and FedAWARE; FedACS also has 0.05, 0.2, 0.35
    min_size: Annotated[int, Ge(0)] = 10
    balance: Literal["none", "cap", "equal"] = "none"

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        cap = samples.count / num_clients if self.balance == "cap" else np.inf
        everyone = np.ones((num_clients, samples.num_classes), dtype=bool)

        def draw() -> Ints:
            return dirichlet_counts(samples.class_sizes, self.alpha, everyone, cap, rng)

        check_min_size(self.min_size, samples.count, num_clients)
        if self.balance == "equal":  # no redraws are needed: all sizes become n/N
            return level(deal(draw(), samples.codes, rng), num_clients, rng)
        return deal(redraw(draw, self.min_size, self.alpha), samples.codes, rng)
