"""Partitions of the training samples over clients."""

from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples, Split

__all__ = ["PARTITIONS", "Partition", "Samples", "Split"]
