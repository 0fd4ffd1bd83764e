"""Partitions of the training samples over clients; one file for each partition, found by the registry."""

from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples, Split

__all__ = ["PARTITIONS", "Partition", "Samples", "Split"]
