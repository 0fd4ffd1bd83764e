"""Graphs that are the same in every round, random graphs, and graphs that change in a fixed sequence."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import networkx as nx

from raylfl.components.options import Doc, Ge, Gt, Le
from raylfl.core.keyed import keyed_int
from raylfl.errors import BadValue
from raylfl.heterogeneity.topologies.base import TOPOLOGIES, Graph
from raylfl.heterogeneity.world import RunContext

ATTEMPTS = 100  # largest number of draws until a graph is connected


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree % 2:
            raise BadValue("degree", got=self.degree, need="an even number: half of the neighbours are on either side")

    def drawn(self, count: int, seed: int) -> nx.Graph[int]:
        if self.degree > count:
            raise BadValue("degree", got=self.degree, need=f"at most {count}, the number of clients")
        return nx.watts_strogatz_graph(count, self.degree, self.p, seed=seed)


@TOPOLOGIES.register("one_peer_exponential", paper="Ying et al. 2021")
@dataclass(kw_only=True)
class OnePeerExponential(Graph):
    """In round r node i sends to node i + 2^k modulo N, k = r mod ceil(log2 N): one message per node and round.

    If N is a power of two and no node or message is missing, the mixing matrices of log2(N) successive rounds have the
    product 11^T/N, with 1 the vector of ones. After these rounds all nodes have the exact average.
    """

    directed: ClassVar[bool] = True
    changes: ClassVar[bool] = True

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        exponents = max(1, (world.count - 1).bit_length())
        return circulant(world.count, [2 ** (r % exponents)])


@TOPOLOGIES.register("hyper_cuboid", paper="Nguyen et al. 2023")
@dataclass(kw_only=True)
class HyperCuboid(Graph):
    """Exchanges within groups of p nodes, where p takes the prime factors of the number of nodes N in turn.

    N has m prime factors p_1, ..., p_m, and a node's number is written in the mixed base (p_1, ..., p_m). In round r,
    with k = 1 + (r mod m), nodes whose numbers differ only in digit k exchange with each other. If no node or message
    is missing, the mixing matrices of m successive rounds have the product 11^T/N, with 1 the vector of ones. After
    these rounds all nodes have the exact average.
    """

    changes: ClassVar[bool] = True

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        factors = prime_factors(world.count)
        found = nx.empty_graph(world.count)
        if not factors:
            return found
        k = r % len(factors)
        stride = math.prod(factors[:k])
        for node in range(world.count):
            digit = node // stride % factors[k]
            found.add_edges_from((node, node + (other - digit) * stride) for other in range(digit + 1, factors[k]))
        return found


def prime_factors(count: int) -> list[int]:
    """The prime factors of `count` >= 1, with repetition, ascending.

    >>> prime_factors(12), prime_factors(7), prime_factors(1)
    ([2, 2, 3], [7], [])
    """
    factors, p = [], 2
    while count > 1:
        while count % p == 0:
            factors.append(p)
            count //= p
        p += 1
    return factors
