"""Properties of a topology: degrees, diameter, spectral gap, and mixing rate with absent nodes and lost messages."""

import networkx as nx
import numpy as np

from raylfl.core.arrays import Floats, Ints
from raylfl.core.mixing import Edges, Family, Mixing, matrices
from raylfl.heterogeneity.links.base import Link
from raylfl.heterogeneity.participation.base import Participation
from raylfl.heterogeneity.topologies.base import Graph
from raylfl.heterogeneity.world import RunContext

ROUNDS = 50  # largest number of rounds whose mixing matrices are multiplied for the mixing rate
EXACT = 1e-12  # a norm below this is zero up to rounding


def numbers(graph: Graph, world: RunContext, family: Family) -> dict[str, int | float | str]:
    """Size, degrees, diameter and spectral gap of the graph of round 0, by name.

    The degree of a node is the number of nodes to which it sends. The spectral gap is that of `first_mixing`. family:
    the kind of mixing matrix that the method needs.
    """
    pairs = graph.pairs(0, world)
    drawn = nx.empty_graph(world.count, create_using=nx.DiGraph)
    drawn.add_edges_from(pairs.tolist())
    degrees = np.bincount(pairs[:, 0], minlength=world.count)
    connected = nx.is_strongly_connected(drawn)
    return {
        "nodes": world.count,
        "edges": len(pairs) if graph.directed else len(pairs) // 2,
        "degree": f"{degrees.min()}..{degrees.max()}" if np.ptp(degrees) else int(degrees[0]),
        "diameter": nx.diameter(drawn) if connected else "not connected",
        "gap": first_mixing(graph, world, family).gap,
    }


def first_mixing(graph: Graph, world: RunContext, family: Family) -> Mixing:
    """The mixing matrix of round 0 if every node works and every message arrives; for the family `pair`, that is R."""
    pairs = graph.pairs(0, world)
    edges = Edges(world.count, pairs, np.ones(len(pairs), dtype=bool), graph.directed, graph.weights)
    return matrices(edges, np.arange(world.count), family)[0]


def mixing_rate(graph: Graph, world: RunContext, family: Family, participation: Participation, link: Link) -> float:
    """The mixing rate: 1 minus the mean factor per round by which differences between nodes shrink.

    The rate is 1 - |(I - 11^T/N) P|^(1/T) with P = W_{T-1} ... W_0, in the spectral norm. W_r is the mixing matrix of
    round r [N, N] for the nodes that work and the messages that arrive (for the family `pair`, the row-stochastic R). T
    is the number of rounds of the run, at most 50, I the identity, and 1 the vector of ones. For the family `column`,
    the norm is |P (I - 11^T/N)|: differences between the columns of P. The rate is 1 if the differences vanish.
    """
    n, rounds = world.count, min(ROUNDS, world.rounds)
    product: Floats = np.eye(n)
    for r in range(rounds):
        nodes: Ints = np.sort(participation.draw(r, world).cohort)
        w: Floats = np.eye(n)
        w[np.ix_(nodes, nodes)] = matrices(graph.edges(r, world, link), nodes, family)[0].matrix
        product = w @ product
    centre = np.eye(n) - 1 / n
    left = np.linalg.norm(product @ centre if family == "column" else centre @ product, 2)
    return 1.0 if left < EXACT else float(1 - left ** (1 / max(rounds, 1)))
