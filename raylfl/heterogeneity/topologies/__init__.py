"""Topologies: the graphs over which the clients of methods without a server exchange messages."""

from raylfl.heterogeneity.topologies.base import TOPOLOGIES, Graph

__all__ = ["TOPOLOGIES", "Graph"]
