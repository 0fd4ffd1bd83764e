"""Mixing matrices: the weights with which the nodes of a graph average their vectors in a round.

Node i has a vector x_i and replaces it by W_ii x_i + sum_j W_ij x_j, a sum over the nodes j whose message arrives at i.
The vectors of all nodes are the rows of a matrix X [N, d]. There are three families of mixing matrices, and each method
states the family that its proof needs:

    doubly    rows and columns of W sum to 1: the mean vector is kept       DSGD and gradient tracking
    row       rows of R sum to 1: equal vectors stay equal; a node must know which messages it receives
    column    columns of C sum to 1: the sum of the vectors is kept; a node must know which of its messages arrived

A node that does not work in a round neither computes nor sends. Weights are computed from the graph of the working
nodes, and in every round the rows and columns of the matrix have the sums of its family. For `doubly`, an undirected
edge counts if both of its messages arrive. On a directed graph with as many edges into each node as out of it, W is
doubly stochastic in rounds in which all nodes work and all messages arrive. In other rounds, the two ends of each edge
whose message arrives exchange their vectors in both directions, at half the edge's weight.

Sources: Metropolis weights, Xiao, Boyd & Lall, IPSN 2005; exchanges in pairs, Boyd et al., IEEE Trans. IT 2006.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.errors import RaylflError

if TYPE_CHECKING:
    from torch import Tensor

    from raylfl.core.mixing_rows import MixingRows

Weights = Literal["auto", "metropolis", "max_degree", "lazy", "row_stochastic", "column_stochastic", "pair"]
Family = Literal["doubly", "column", "pair"]
DOUBLY: tuple[Weights, ...] = ("metropolis", "max_degree", "lazy")
DENSE = 32  # mean number of edges into a node above which rows are mixed by matrix-vector products
KEPT = 8  # matrices, messages and lines of the record that `Edges` keeps


@dataclass(frozen=True)
class Mixing:
    """A mixing matrix W [C, C] of the C nodes of a round.

    self_weights: the diagonal of W [C]. sources, targets, weights: the other entries W[targets[e], sources[e]] =
    weights[e] for each edge e; entries without an edge are 0.
    """

    self_weights: Floats
    sources: Ints
    targets: Ints
    weights: Floats

    @property
    def matrix(self) -> Floats:
        """W as a dense matrix [C, C]."""
        w = np.diag(self.self_weights)
        np.add.at(w, (self.targets, self.sources), self.weights)
        return w

    def __call__(self, rows: Tensor) -> Tensor:
        """The product of W and the rows [C, ...], as a new tensor."""
        nodes = np.arange(len(self.self_weights))
        return self.rows_of(nodes, nodes)(rows)

    @property
    def dense(self) -> bool:
        """Whether W has so many entries per row that matrix-vector products are faster than sums over edges."""
        return len(self.sources) > DENSE * len(self.self_weights)

    def needs(self, targets: Ints) -> Ints:
        """The nodes whose old vectors determine the new vectors of `targets`, ascending; they include `targets`."""
        if self.dense:
            return np.arange(len(self.self_weights))
        return np.union1d(targets, self.sources[np.isin(self.targets, targets)])

    def rows_of(self, targets: Ints, owners: Ints) -> MixingRows:
        """The rows of W that give the new vectors of the nodes `targets` (distinct) from the old vectors of `owners`.

        owners: distinct nodes in any order, among them all of `self.needs(targets)`. A node's new vector has the same
        bits for all `targets` that include the node, and all `owners`.
        """
        from raylfl.core.mixing_rows import MixingRows  # imported late: configs are checked without torch

        row, place = np.full((2, len(self.self_weights)), -1)
        row[targets] = np.arange(len(targets))
        place[owners] = np.arange(len(owners))
        edges = np.flatnonzero(row[self.targets] >= 0)
        edges = edges[np.lexsort((self.sources[edges], row[self.targets[edges]]))]
        first = np.searchsorted(row[self.targets[edges]], np.arange(len(targets) + 1))
        self_rows, sources, order = place[targets], place[self.sources[edges]], None
        if self.dense:  # products with whole rows are summed in the order of the nodes, which are all in `owners`
            self_rows, sources, order = targets, self.sources[edges], place
        return MixingRows(self.self_weights[targets], self_rows, first, sources, self.weights[edges], order)

    def lazy(self) -> Mixing:
        """The matrix (I + W) / 2."""
        return Mixing((1 + self.self_weights) / 2, self.sources, self.targets, self.weights / 2)

    @cached_property
    def gap(self) -> float:
        """The spectral gap 1 - |lambda_2| of W; 0 if the round's graph is not weakly connected, 1 for a single node.

        lambda_2 is the eigenvalue with the second largest modulus.
        """
        moduli = np.sort(np.abs(np.linalg.eigvals(self.matrix)))[::-1]
        return max(0.0, 1.0 - float(moduli[1])) if len(moduli) > 1 else 1.0

    @cached_property
    def components(self) -> int:
        """The number of strongly connected components of the round's graph (1: each node reaches all others)."""
        from scipy.sparse import coo_array  # not before: a slow import
        from scipy.sparse.csgraph import connected_components

        carry, count = self.weights > 0, len(self.self_weights)
        ends = self.sources[carry], self.targets[carry]
        edges = coo_array((np.ones(len(ends[0])), ends), shape=(count, count))
        return int(connected_components(edges, connection="strong", return_labels=False))


@dataclass(frozen=True)
class Edges:
    """The E directed edges of a graph of N nodes in one round; an undirected edge counts as two.

    count: N. pairs: the nodes (from, to) of each edge, int64 [E, 2]. arrives: whether a message along the edge arrives,
    bool [E]. directed: whether the graph is directed. weights: the option `topology.weights`.
    """

    count: int
    pairs: Ints
    arrives: Bools
    directed: bool = False
    weights: Weights = "auto"
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)  # a cache of `once`

    @staticmethod
    def complete(count: int) -> Edges:
        """The complete undirected graph of `count` nodes, on which every message arrives."""
        pairs = np.argwhere(~np.eye(count, dtype=bool))
        return Edges(count, pairs, np.ones(len(pairs), dtype=bool))

    def doubly(self, nodes: Ints) -> Mixing:
        """The doubly stochastic matrix W of the nodes that work in a round; `row` if `weights` is row_stochastic."""
        if self.weights == "row_stochastic":
            return self.row(nodes)
        w = self._balanced_mixing(nodes) if self.directed else self._symmetric(nodes)
        return w.lazy() if self.weights == "lazy" else w

    def row(self, nodes: Ints) -> Mixing:
        """The row-stochastic matrix R of these working nodes.

        It is the matrix W of `doubly` if the config sets doubly stochastic weights. Otherwise, the weights of a node's
        own vector and of each received vector are 1 / (1 + number of messages that it receives).
        """
        return self._in_equal_shares(nodes, end=1)

    def column(self, nodes: Ints) -> Mixing:
        """The column-stochastic matrix C of these working nodes.

        It is the matrix W of `doubly` if the config sets doubly stochastic weights. Otherwise, the weight of a node's
        vector, at each receiver and at the node itself, is 1 / (1 + number of its messages that arrive).
        """
        return self._in_equal_shares(nodes, end=0)

    def _in_equal_shares(self, nodes: Ints, end: int) -> Mixing:
        if self.weights in DOUBLY:
            return self.doubly(nodes)
        sources, targets = ends = self._at(nodes, self.arrives).T
        share = 1.0 / (1 + np.bincount(ends[end], minlength=len(nodes)))
        return Mixing(share, sources, targets, share[ends[end]])

    def once(self, name: str, nodes: Ints, family: Family, make: Callable[[], Any]) -> Any:
        """The result of `make()`, from a small cache with the key (name, family, nodes)."""
        key = (name, family, nodes.tobytes())
        result = self._made.get(key)
        if result is None:
            result = make()
            if len(self._made) >= KEPT:
                self._made.clear()
            self._made[key] = result
        return result

    def messages(self, nodes: Ints, family: Family) -> Ints:
        """The M distinct messages that these nodes send, as positions (from, to) in `nodes` [M, 2].

        One message goes along each edge, lost ones included, and one along each entry of the round's `matrices`: an
        exchange on a directed graph also needs the other end's vector.
        """

        def make() -> Ints:
            sent = self._at(nodes, np.ones(len(self.pairs), dtype=bool))
            mixed = [np.column_stack([m.sources, m.targets]) for m in matrices(self, nodes, family)]
            every = np.concatenate([sent, *mixed])
            _, first = np.unique(every, axis=0, return_index=True)
            return every[np.sort(first)]

        messages: Ints = self.once("messages", nodes, family, make)
        return messages

    def _at(self, nodes: Ints, mask: Bools) -> Ints:
        """The edges of `mask` between two of these nodes, as positions (from, to) in `nodes` [*, 2]."""
        position = np.full(self.count, -1, dtype=np.int64)
        position[nodes] = np.arange(len(nodes))
        ends = position[self.pairs[mask]].reshape(-1, 2)
        return ends[(ends >= 0).all(axis=1)]

    def _symmetric(self, nodes: Ints) -> Mixing:
        codes = self.pairs @ np.array([self.count, 1])
        back = self.pairs @ np.array([1, self.count])
        pairs = self._at(nodes, self.arrives & np.isin(back, codes[self.arrives]))
        sources, targets = pairs.T
        degrees = np.bincount(targets, minlength=len(nodes))
        most = np.maximum(degrees[sources], degrees[targets])
        if self.weights == "max_degree":  # the maximum over the whole graph
            most = np.full(len(pairs), self._most())
        return _stochastic(len(nodes), sources, targets, 1.0 / (1 + most))

    def _balanced_mixing(self, nodes: Ints) -> Mixing:
        sent, received = edge_counts(self.pairs, self.count)
        if len(off := np.flatnonzero(sent != received)):
            raise RaylflError(
                f"the round's graph has {received[off[0]]} edges into node {off[0]} and {sent[off[0]]} out of it, but "
                "doubly stochastic weights of a directed graph need as many (topology.weights; sgp, push_diging and "
                "push_pull need no such weights)"
            )
        pairs = self._at(nodes, self.arrives)
        weight = 1.0 / (1 + self._most())
        if len(nodes) < self.count or not self.arrives.all():
            pairs, weight = np.concatenate([pairs, pairs[:, ::-1]]), weight / 2
        sources, targets = pairs.T
        weights: Floats = np.full(len(pairs), weight)
        return _stochastic(len(nodes), sources, targets, weights)

    def _most(self) -> int:
        """The largest number of edges into a node of the graph."""
        return int(np.bincount(self.pairs[:, 1], minlength=1).max())


def edge_counts(pairs: Ints, count: int) -> tuple[Ints, Ints]:
    """The numbers of edges out of each node [N] and into each node [N]; pairs: directed edges [E, 2]; count: N."""
    sent, received = (np.bincount(ends, minlength=count) for ends in pairs.T)
    return sent, received


def _stochastic(count: int, sources: Ints, targets: Ints, weights: Floats) -> Mixing:
    """The mixing matrix of `count` nodes with these weights off its diagonal, whose rows sum to 1."""
    off: Floats = np.bincount(targets, weights, minlength=count).astype(np.float64)
    return Mixing(1.0 - off, sources, targets, weights)


def matrices(edges: Edges, nodes: Ints, family: Family) -> Sequence[Mixing]:
    """The mixing matrices of these working nodes: (W,) for `doubly`, (C,) for `column`, (R, C) for `pair`.

    Repeated calls return the same objects while they are in the cache of `edges`.
    """
    makers = {"doubly": [edges.doubly], "column": [edges.column], "pair": [edges.row, edges.column]}[family]
    mixings: Sequence[Mixing] = edges.once("matrices", nodes, family, lambda: tuple(make(nodes) for make in makers))
    return mixings
