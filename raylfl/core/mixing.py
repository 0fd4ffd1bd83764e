"""Mixing matrices: the weights with which the nodes of a graph average their vectors in a round.

Node i has a vector x_i and replaces it by W_ii x_i + sum_j W_ij x_j, a sum over the nodes j whose message arrives at i.
The vectors of all nodes are the rows of a matrix X [N, d]. There are three families of mixing matrices, and each method
states the family that its proof needs:

    doubly    rows and columns of W sum to 1: the mean vector is kept       DSGD and gradient tracking
    row       rows of R sum to 1: equal vectors stay equal; a node must know which messages it receives
    column    columns of C sum to 1: the sum of the vectors is kept; a node must know which of its messages arrived

A node that does not work in a round neither computes nor sends. Weights are computed from the graph of the working
nodes, and in every round the rows and columns of the matrix have the sums of its family. For `doubly`, an undirected
edge counts if both of its messages arrive. On a directed graph every node has as many edges in as out, and W is doubly
stochastic if every message arrives. In other rounds, the two ends of each edge whose message arrives exchange their
vectors in both directions, at half the edge's weight.

Sources: Metropolis weights, Xiao, Boyd & Lall, IPSN 2005; exchanges in pairs, Boyd et al., IEEE Trans. IT 2006.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Ints = NDArray[np.int64]  # these three as in `core.population`, which imports this file
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Weights = Literal["auto", "metropolis", "max_degree", "lazy", "row_stochastic", "column_stochastic", "pair"]
Family = Literal["doubly", "column", "pair"]
DOUBLY: tuple[Weights, ...] = ("metropolis", "max_degree", "lazy")
DENSE = 32  # mean number of edges into a node above which rows are mixed by matrix-vector products
KEPT = 8  # matrices and messages that `Edges` keeps
FLOATS = 2**18  # entries of the rows that are mixed at a time; they fit in the caches


@dataclass(frozen=True)
class Mixing:
    """A mixing matrix W [C, C] of the C nodes of a round.

    own: the diagonal of W [C]. sources, targets, weights: the other entries W[targets[e], sources[e]] = weights[e] for
    each edge e; entries without an edge are 0.
    """

    own: Floats
    sources: Ints
    targets: Ints
    weights: Floats

    @property
    def matrix(self) -> Floats:
        """W as a dense matrix [C, C]."""
        w = np.diag(self.own)
        np.add.at(w, (self.targets, self.sources), self.weights)
        return w

    def __call__(self, rows: Tensor) -> Tensor:
        """The product of W and the rows [C, ...], as a new tensor."""
        everyone = np.arange(len(self.own))
        return self.part(everyone, everyone)(rows)

    @property
    def dense(self) -> bool:
        """Whether W has so many entries per row that matrix-vector products are faster than sums over edges."""
        return len(self.sources) > DENSE * len(self.own)

    def needs(self, targets: Ints) -> Ints:
        """The nodes on whose rows the new rows of the nodes `targets` depend, themselves included, ascending."""
        if self.dense:
            return np.arange(len(self.own))
        return np.union1d(targets, self.sources[np.isin(self.targets, targets)])

    def part(self, targets: Ints, needs: Ints) -> Part:
        """The part of W that computes the new rows of the nodes `targets` (distinct) from the rows of `needs`.

        needs: nodes in ascending order, at least `self.needs(targets)`. The new row of a node has the same bits in
        every part that contains it.
        """
        row = np.full(len(self.own), -1, dtype=np.int64)
        row[targets] = np.arange(len(targets))
        kept = np.flatnonzero(row[self.targets] >= 0)
        kept = kept[np.lexsort((self.sources[kept], row[self.targets[kept]]))]
        first = np.searchsorted(row[self.targets[kept]], np.arange(len(targets) + 1))
        at = np.searchsorted(needs, targets), np.searchsorted(needs, self.sources[kept])
        return Part(self.own[targets], at[0], first, at[1], self.weights[kept], self.dense)

    def lazy(self) -> Mixing:
        """The matrix (I + W) / 2."""
        return Mixing((1 + self.own) / 2, self.sources, self.targets, self.weights / 2)

    @cached_property
    def gap(self) -> float:
        """The spectral gap 1 - |lambda_2| of W; 0 if the round's graph is not connected, 1 for a single node.

        lambda_2 is the eigenvalue with the second largest modulus.
        """
        moduli = np.sort(np.abs(np.linalg.eigvals(self.matrix)))[::-1]
        return max(0.0, 1.0 - float(moduli[1])) if len(moduli) > 1 else 1.0

    @cached_property
    def components(self) -> int:
        """The number of strongly connected components of the round's graph (1: each node reaches all others)."""
        from scipy.sparse import coo_array  # not before: a slow import
        from scipy.sparse.csgraph import connected_components

        carry, count = self.weights > 0, len(self.own)
        ends = self.sources[carry], self.targets[carry]
        edges = coo_array((np.ones(len(ends[0])), ends), shape=(count, count))
        return int(connected_components(edges, connection="strong", return_labels=False))


@dataclass(frozen=True)
class Part:
    """T rows of a mixing matrix, which give the new rows of T nodes (targets) from the rows of S nodes.

    The new row of target t is own[t] times row here[t], plus weights[e] times row sources[e] for all e with
    first[t] <= e < first[t + 1]. dense: whether it is computed as a matrix-vector product with all S rows. place: the
    position of each of the S nodes' rows in the argument of a call; None: 0, 1, ...
    """

    own: Floats
    here: Ints
    first: Ints
    sources: Ints
    weights: Floats
    dense: bool
    place: Ints | None = None

    def __call__(self, *pieces: Tensor) -> Tensor:
        """The new rows [T, ...] from the rows [S, ...], given as one tensor or as several consecutive tensors.

        The order of the sum for a target depends on the target's row of the matrix only: the order of a matrix-vector
        product (dense); the target's row first, then its neighbours', with fused multiply-adds (single precision); or
        pairwise as in `raylfl.core.reduce.tree_sum` (double precision, and sums with all weights 1).
        """
        return self.mixed(pieces, [len(self.own)], all_cores=False)[0]

    def mixed(self, pieces: Sequence[Tensor], sizes: Sequence[int], all_cores: bool) -> list[Tensor]:
        """The new rows [T, ...], divided into new tensors of `sizes` rows each; small ones can reuse freed memory.

        pieces: the rows [S, ...] in one or several consecutive tensors. all_cores: whether single-precision sums over
        edges are computed on all cores, in blocks of columns.
        """
        import torch  # imported late: configs are checked without torch

        if not self.dense and pieces[0].dtype == torch.float32:
            return self._fused(pieces, sizes, all_cores)
        rows = _joined(pieces)
        if self.dense:
            whole = self._product(rows if self.place is None else rows.index_select(0, torch.from_numpy(self.place)))
        else:
            whole = self._pairwise(rows, np.arange(len(self.own)))
        return [whole] if len(sizes) == 1 else [part.clone() for part in whole.split(list(sizes))]

    @cached_property
    def _plain(self) -> Bools:
        """A mask of the targets that have several neighbours, all with weight 1, bool [T]."""
        degrees = np.diff(self.first)
        other = np.add.reduceat(np.append(self.weights != 1, False), self.first[:-1]) if len(degrees) else degrees
        plain: Bools = (degrees > 1) & (other == 0)
        return plain

    @cached_property
    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """The terms of the targets' sums: (row number of each term, its weight, first term of each target [T + 1]).

        The first term of a target is its own row, unless its weight is 0.
        """
        import torch

        kept = np.insert(np.ones(len(self.sources), dtype=bool), self.first[:-1], self.own != 0)
        sources = np.insert(self.sources, self.first[:-1], self.here)[kept]
        weights = np.insert(self.weights, self.first[:-1], self.own)[kept]
        first = np.append(0, np.cumsum(kept))[self.first + np.arange(len(self.first))]
        return torch.from_numpy(sources), torch.from_numpy(weights).float(), torch.from_numpy(first)

    def _fused(self, pieces: Sequence[Tensor], sizes: Sequence[int], all_cores: bool) -> list[Tensor]:
        """The new rows by sums over edges, in blocks of columns that fit in the caches."""
        import torch
        from torch.nn.functional import embedding_bag

        from raylfl.core.threads import on_all_cores

        sources, weights, first = self._entries
        flat = [piece.flatten(1) for piece in pieces]
        mixed = [flat[0].new_empty(size, flat[0].shape[1]) for size in sizes]
        width = min(max(FLOATS // max(sum(map(len, flat)), 1), 256), 4096)
        plain = np.flatnonzero(self._plain)

        def block(start: int) -> None:
            at = slice(start, start + width)
            rows = _joined([piece[:, at] for piece in flat])
            sums = embedding_bag(sources, rows, first, mode="sum", per_sample_weights=weights, include_last_offset=True)
            if len(plain):
                sums[torch.from_numpy(plain)] = self._pairwise(rows, plain)
            for part, new in zip(mixed, sums.split(list(sizes)), strict=True):
                part[:, at] = new

        starts = range(0, flat[0].shape[1], width)
        if all_cores:
            on_all_cores(block, starts)
        else:
            for start in starts:
                block(start)
        return [part.view(len(part), *pieces[0].shape[1:]) for part in mixed]

    def _pairwise(self, rows: Tensor, targets: Ints) -> Tensor:
        """The new rows of these targets: the weighted own row plus the `tree_sum` of the neighbours' weighted rows."""
        import torch

        from raylfl.core.reduce import column, halved

        own, degrees = self.own[targets], np.diff(self.first)[targets]
        mixed = rows.index_select(0, torch.from_numpy(self.here[targets]))
        mixed *= column(own, rows)
        if (own == 0).any():
            mixed[torch.from_numpy(own == 0)] = 0.0  # 0 times an entry may be -0 or nan
        for degree in np.unique(degrees[degrees > 0]):
            alike = np.flatnonzero(degrees == degree)
            for some in np.array_split(alike, -(-len(alike) * int(degree) * rows[0].numel() // FLOATS)):
                at = self.first[targets[some]] + np.arange(degree)[:, None]  # [degree, nodes]
                terms = rows.index_select(0, torch.from_numpy(self.sources[at].ravel())).view(
                    *at.shape, *rows.shape[1:]
                )
                terms *= torch.from_numpy(self.weights[at]).to(rows).view(*at.shape, *[1] * (rows.ndim - 1))
                if some[-1] - some[0] == len(some) - 1:  # consecutive targets, as on a regular graph: no copy
                    mixed[some[0] : some[-1] + 1] += halved(terms)
                else:
                    mixed[torch.from_numpy(some)] += halved(terms)
        return mixed

    def over(self, order: Ints) -> Part:
        """This part, with the same bits, for calls with rows in another order: row k is the former row order[k]."""
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        if self.dense:  # products with whole rows are summed in the order of the nodes
            return replace(self, place=place)
        return replace(self, here=place[self.here], sources=place[self.sources])

    def lazy(self) -> Part:
        """These rows of the matrix (I + W) / 2, where W is the mixing matrix of this part."""
        return replace(self, own=(1 + self.own) / 2, weights=self.weights / 2)

    def _product(self, rows: Tensor) -> Tensor:
        """The new rows by one matrix-vector product for each target and block of columns.

        In a single product of two matrices, the bits of a row could depend on the number of other rows.
        """
        import torch

        from raylfl.core.reduce import BLOCK

        matrix = np.zeros((len(self.own), len(rows)))
        matrix[np.arange(len(self.own)), self.here] = self.own
        np.add.at(matrix, (np.repeat(np.arange(len(self.own)), np.diff(self.first)), self.sources), self.weights)
        w, flat = torch.from_numpy(matrix).to(rows), rows.flatten(1)
        mixed = flat.new_empty(len(w), flat.shape[1])
        for start in range(0, flat.shape[1], BLOCK):
            columns = flat[:, start : start + BLOCK].T
            for target, entries in enumerate(w):
                mixed[target, start : start + BLOCK] = torch.mv(columns, entries)
        return mixed.view(len(w), *rows.shape[1:])


@dataclass(frozen=True)
class Edges:
    """The E directed edges of a graph of N nodes in one round; an undirected edge counts as two.

    count: N. pairs: (from, to) of each edge, int64 [E, 2]; arrives: whether a message along the edge arrives, bool [E];
    directed: whether the graph is directed; weights: the option `topology.weights`.
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
        """The doubly stochastic matrix W of these working nodes; with `row_stochastic` weights, R of `row`."""
        if self.weights == "row_stochastic":
            return self.row(nodes)
        w = self._balanced(nodes) if self.directed else self._symmetric(nodes)
        return w.lazy() if self.weights == "lazy" else w

    def row(self, nodes: Ints) -> Mixing:
        """The row-stochastic matrix R of these working nodes.

        It is the matrix W of `doubly` if the config sets doubly stochastic weights. Otherwise, the weights of a node's
        own vector and of each received vector are 1 / (1 + number of messages that it receives).
        """
        if self.weights in DOUBLY:
            return self.doubly(nodes)
        sources, targets = self._at(nodes, self.arrives).T
        share = 1.0 / (1 + np.bincount(targets, minlength=len(nodes)))
        return Mixing(share, sources, targets, share[targets])

    def column(self, nodes: Ints) -> Mixing:
        """The column-stochastic matrix C of these working nodes.

        It is the matrix W of `doubly` if the config sets doubly stochastic weights. Otherwise, the weight of a node's
        vector, at each receiver and at the node itself, is 1 / (1 + number of its messages that arrive).
        """
        if self.weights in DOUBLY:
            return self.doubly(nodes)
        sources, targets = self._at(nodes, self.arrives).T
        share = 1.0 / (1 + np.bincount(sources, minlength=len(nodes)))
        return Mixing(share, sources, targets, share[sources])

    def once(self, name: str, nodes: Ints, family: Family, make: Callable[[], Any]) -> Any:
        """The result of `make()`, from a small cache with the key (name, family, nodes)."""
        key = (name, family, nodes.tobytes())
        found = self._made.get(key)
        if found is None:
            found = make()
            if len(self._made) >= KEPT:
                self._made.clear()
            self._made[key] = found
        return found

    def messages(self, nodes: Ints, family: Family) -> Ints:
        """The M messages that these nodes send, lost messages included, as positions (from, to) in `nodes` [M, 2].

        They follow the edges. With `doubly` on a directed graph they go in both directions of each edge, unless all
        nodes work and all messages arrive.
        """
        found: Ints = self.once("messages", nodes, family, lambda: self._messages(nodes, family))
        return found

    def _messages(self, nodes: Ints, family: Family) -> Ints:
        sent = self._at(nodes, np.ones(len(self.pairs), dtype=bool))
        exchange = self.directed and family == "doubly" and not self._undisturbed(nodes)
        return np.concatenate([sent, sent[:, ::-1]]) if exchange else sent

    def _at(self, nodes: Ints, kept: Bools) -> Ints:
        """The edges in the mask `kept` between two of these nodes, as positions (from, to) in `nodes` [*, 2]."""
        place = np.full(self.count, -1, dtype=np.int64)
        place[nodes] = np.arange(len(nodes))
        at = place[self.pairs[kept]].reshape(-1, 2)
        return at[(at >= 0).all(axis=1)]

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

    def _balanced(self, nodes: Ints) -> Mixing:
        pairs = self._at(nodes, self.arrives)
        weight = 1.0 / (1 + self._most())
        if not self._undisturbed(nodes):
            pairs, weight = np.concatenate([pairs, pairs[:, ::-1]]), weight / 2
        sources, targets = pairs.T
        weights: Floats = np.full(len(pairs), weight)
        return _stochastic(len(nodes), sources, targets, weights)

    def _undisturbed(self, nodes: Ints) -> bool:
        return len(nodes) == self.count and bool(self.arrives.all())

    def _most(self) -> int:
        """The largest number of edges into a node of the graph."""
        return int(np.bincount(self.pairs[:, 1], minlength=1).max())


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    """The rows of all pieces in one tensor."""
    import torch

    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


def _stochastic(count: int, sources: Ints, targets: Ints, weights: Floats) -> Mixing:
    """The mixing matrix of `count` nodes with these weights off its diagonal, whose rows sum to 1."""
    off: Floats = np.bincount(targets, weights, minlength=count).astype(np.float64)
    return Mixing(1.0 - off, sources, targets, weights)


def matrices(edges: Edges, nodes: Ints, family: Family) -> Sequence[Mixing]:
    """The mixing matrices of these working nodes: (W,) for `doubly`, (C,) for `column`, (R, C) for `pair`.

    Repeated calls return the same objects while they are in the cache of `edges`.
    """
    found: Sequence[Mixing] = edges.once("matrices", nodes, family, lambda: _matrices(edges, nodes, family))
    return found


def _matrices(edges: Edges, nodes: Ints, family: Family) -> Sequence[Mixing]:
    if family == "pair":
        return edges.row(nodes), edges.column(nodes)
    return (edges.column(nodes),) if family == "column" else (edges.doubly(nodes),)
