"""Graphs that are the same in every round: complete, star, rings, grid, torus, exponential, hypercube."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import networkx as nx

from raylfl.components.options import Doc, Ge
from raylfl.errors import BadValue
from raylfl.heterogeneity.topologies.base import TOPOLOGIES, Graph
from raylfl.heterogeneity.world import RunContext


@TOPOLOGIES.register("complete")
@dataclass(kw_only=True)
class Complete(Graph):
    """Every node exchanges with every other node."""

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        return nx.complete_graph(world.count)


@TOPOLOGIES.register("star")
@dataclass(kw_only=True)
class Star(Graph):
    """Node 0 exchanges with every other node; it is a client, not a server."""

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        return nx.star_graph(world.count - 1)


@TOPOLOGIES.register("ring")
@dataclass(kw_only=True)
class Ring(Graph):
    """Node i exchanges with nodes i - 1 and i + 1, modulo the number of nodes."""

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        return nx.cycle_graph(world.count)


@TOPOLOGIES.register("directed_ring")
@dataclass(kw_only=True)
class DirectedRing(Graph):
    """Node i sends to node i + 1, modulo the number of nodes."""

    directed: ClassVar[bool] = True

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        return circulant(world.count, [1])


@TOPOLOGIES.register("grid")
@dataclass(kw_only=True)
class Grid(Graph):
    """A rectangle of `rows` times N/rows nodes, each with its neighbours left, right, above and below."""

    rows: Annotated[int, Ge(1), Doc("the rows, a divisor of N; null: the largest one up to sqrt(N)")] | None = None
    periodic: ClassVar[bool] = False

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        rows = self.rows or max(k for k in range(1, world.count + 1) if k * k <= world.count and world.count % k == 0)
        if world.count % rows:
            raise BadValue("rows", got=rows, need=f"a divisor of {world.count}, the number of clients")
        lattice = nx.grid_2d_graph(rows, world.count // rows, periodic=self.periodic)
        return nx.convert_node_labels_to_integers(lattice, ordering="sorted")


@TOPOLOGIES.register("torus")
@dataclass(kw_only=True)
class Torus(Grid):
    """A grid with edges between its opposite sides: every row and column is a ring."""

    periodic: ClassVar[bool] = True


@TOPOLOGIES.register("exponential", paper="Ying et al. 2021")
@dataclass(kw_only=True)
class Exponential(Graph):
    """Node i sends to i + 1, i + 2, i + 4, ... modulo N: about log2(N) edges per node, spectral gap about 2/log2(N)."""

    directed: ClassVar[bool] = True

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        return circulant(world.count, [2**k for k in range((world.count - 1).bit_length())])


@TOPOLOGIES.register("hypercube")
@dataclass(kw_only=True)
class Hypercube(Graph):
    """Nodes and edges of a cube of log2(N) dimensions; the number of nodes N is a power of two."""

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        dimensions = (world.count - 1).bit_length()
        if 2**dimensions != world.count:
            hint = "exponential takes any number"
            raise BadValue("name", got=f"hypercube with {world.count} clients", need="2, 4, 8, ... clients", hint=hint)
        return nx.convert_node_labels_to_integers(nx.hypercube_graph(dimensions), ordering="sorted")


def circulant(count: int, steps: Sequence[int]) -> nx.DiGraph[int]:
    """A directed graph on `count` nodes with edges from i to i + k modulo `count` for each k in `steps`.

    Unlike networkx's `circulant_graph`, it has no edges to i - k.
    """
    found = nx.empty_graph(count, create_using=nx.DiGraph)
    found.add_edges_from((i, (i + k) % count) for i in range(count) for k in steps)
    return found
