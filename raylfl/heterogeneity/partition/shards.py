"""Shards: the pathological non-IID partition of the FedAvg paper (McMahan et al., AISTATS 2017, Sec. 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from raylfl.components.options import Ge
from raylfl.core.arrays import Ints
from raylfl.errors import BadValue
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import grouped


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
