"""Random graphs: Erdos-Renyi, random regular and small world. The draws depend on the run's seed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import networkx as nx

from raylfl.components.options import Doc, Ge, Gt, Le
from raylfl.core.keyed import keyed_int
from raylfl.errors import BadValue
from raylfl.heterogeneity.topologies.base import TOPOLOGIES, Graph
from raylfl.heterogeneity.world import RunContext

ATTEMPTS = 100  # largest number of draws until a graph is connected


@dataclass(kw_only=True)
class RandomGraph(Graph):
    """A random graph: one for the whole run, redrawn until it is connected.

    If `dynamic`, a new graph in each round, from a single draw: it may be unconnected.
    """

    dynamic: Annotated[bool, Doc("true: the graph is redrawn every round, and need not be connected")] = False

    @property
    def changes(self) -> bool:
        return self.dynamic

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        for attempt in range(ATTEMPTS):
            drawn = self.drawn(world.count, keyed_int(world.seed, "topology", r if self.dynamic else 0, attempt))
            if self.dynamic or nx.is_connected(drawn):
                return drawn
        raise BadValue("name", got="a random graph", need="connected", hint=f"none of {ATTEMPTS} draws was; add edges")

    @abstractmethod
    def drawn(self, count: int, seed: int) -> nx.Graph[int]:
        """One draw of the graph on nodes 0..count-1, a function of `seed`."""


@TOPOLOGIES.register("erdos_renyi")
@dataclass(kw_only=True)
class ErdosRenyi(RandomGraph):
    """Every pair of nodes has an edge with probability p, independently."""

    p: Annotated[float, Gt(0), Le(1), Doc("the probability of an edge")] = 0.3

    def drawn(self, count: int, seed: int) -> nx.Graph[int]:
        return nx.gnp_random_graph(count, self.p, seed=seed)


@TOPOLOGIES.register("random_regular")
@dataclass(kw_only=True)
class RandomRegular(RandomGraph):
    """Every node has `degree` neighbours; for many nodes, all such graphs are about equally likely."""

    degree: Annotated[int, Ge(1), Doc("the neighbours of each node; N times degree is even")] = 4

    def drawn(self, count: int, seed: int) -> nx.Graph[int]:
        if self.degree >= count or self.degree * count % 2:
            need = f"below {count}, the number of clients, and even if that is odd"
            raise BadValue("degree", got=self.degree, need=need)
        return nx.random_regular_graph(self.degree, count, seed=seed)


@TOPOLOGIES.register("small_world", paper="Watts & Strogatz 1998")
@dataclass(kw_only=True)
class SmallWorld(RandomGraph):
    """A ring of nodes with edges to `degree` nearest neighbours; each edge is rewired at random with probability p."""

    degree: Annotated[int, Ge(2), Doc("nearest neighbours, half of them on either side")] = 4
    p: Annotated[float, Ge(0), Le(1), Doc("the probability that an edge is rewired")] = 0.2

    def drawn(self, count: int, seed: int) -> nx.Graph[int]:
        if self.degree > count:
            raise BadValue("degree", got=self.degree, need=f"at most {count}, the number of clients")
        return nx.watts_strogatz_graph(count, self.degree, self.p, seed=seed)
