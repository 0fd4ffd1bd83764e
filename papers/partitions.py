"""The number of samples of each class at each client of a partition, computed without the files of the data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raylfl.core.arrays import Ints

CIFAR10 = (5000,) * 10  # training images per class
MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


def counts_of(partition: Mapping[str, Any], sizes: Sequence[int], clients: int) -> Ints:
    """The number of samples per client and class [N, K] in a partition.

    partition: its options as in a config; sizes: the number of samples of each class in the data set [K]; clients: N.
    """
    from raylfl.config.components import build
    from raylfl.heterogeneity.partition.base import PARTITIONS, Samples
    from raylfl.heterogeneity.partition.stats import class_counts

    labels = np.repeat(np.arange(len(sizes)), sizes)
    samples = Samples(len(labels), labels)
    return class_counts(build(PARTITIONS, partition, "partition").split(samples, clients, seed=0), samples)
