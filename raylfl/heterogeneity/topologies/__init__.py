"""Topologies: the graphs of methods without a server, one file for each kind."""

from raylfl.heterogeneity.topologies.base import TOPOLOGIES, Graph

__all__ = ["TOPOLOGIES", "Graph"]
