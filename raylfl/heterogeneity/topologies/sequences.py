"""Graphs that change every round in a fixed sequence: one-peer exponential and hyper-cuboid graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import networkx as nx

from raylfl.heterogeneity.topologies.base import TOPOLOGIES, Graph
from raylfl.heterogeneity.topologies.static import circulant
from raylfl.heterogeneity.world import RunContext


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
