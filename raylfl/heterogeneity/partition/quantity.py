"""Quantity skew: the same label distribution at every client, but unequal sizes (Li et al., ICDE 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from raylfl.components.options import Gt
from raylfl.core.arrays import Ints
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import cut


@PARTITIONS.register("quantity", paper="Li et al. 2022")
@dataclass
class Quantity(Partition):
    """Random samples for each client, in Dirichlet proportions: client i gets n_i of the n samples.

    Each of the N clients first gets one sample: no client is without data. The other n - N samples are divided in
    proportions p ~ Dir(alpha * 1_N):
    E[n_i] = n/N, Var[n_i] = (n - N)^2 (1/N) (1 - 1/N) / (N alpha + 1).
    """

    alpha: Annotated[float, Gt(0)] = 0.5  # concentration of the sizes; 0.5 as in Li et al. 2022

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        proportions = rng.dirichlet(np.full(num_clients, self.alpha))
        sizes = 1 + cut(proportions, samples.count - num_clients)
        return rng.permutation(np.repeat(np.arange(num_clients), sizes))
