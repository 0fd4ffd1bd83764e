"""Products of rows of a mixing matrix with the nodes' vectors; a node's result has the same bits in any set of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.core.reduce import BLOCK, column, tree_sum_in_place
from raylfl.core.threads import on_all_cores

FLOATS = 2**18  # entries of the rows that are mixed at a time; they fit in the caches


@dataclass(frozen=True)
class MixingRows:
    """T rows of a mixing matrix, which give the new vectors of T nodes (targets) from the vectors of S nodes.

    The vectors of the S nodes are the rows of a call's argument. The new vector of target t is self_weights[t] times
    row self_rows[t], plus weights[e] times row sources[e] for all e with first[t] <= e < first[t + 1].

    order: None, or for new vectors that are computed as matrix-vector products with all S rows, the row number of each
    of the S nodes; `self_rows` and `sources` are then numbers of nodes.
    """

    self_weights: Floats
    self_rows: Ints
    first: Ints
    sources: Ints
    weights: Floats
    order: Ints | None

    def __call__(self, *pieces: Tensor) -> Tensor:
        """The new rows [T, ...] from the rows [S, ...], given as one tensor or as several consecutive tensors.

        The order of the sum for a target depends on its row of the mixing matrix only. With `order`, it is that of a
        matrix-vector product. Otherwise, sums in single precision use fused multiply-adds, the target's own row first.
        In double precision, and for a target with several neighbours that all have weight 1, the neighbours' rows are
        added pairwise as in `raylfl.core.reduce.tree_sum`.
        """
        return self.mix(pieces, [len(self.self_weights)], all_cores=False)[0]

    def mix(self, pieces: Sequence[Tensor], sizes: Sequence[int], all_cores: bool) -> list[Tensor]:
        """The new rows [T, ...] in tensors of these sizes, which reuse freed memory more often than one large tensor.

        pieces: as in `__call__`. all_cores: whether single-precision sums over edges are computed on all cores.
        """
        if self.order is not None:
            mixed = self._product(_join(pieces).index_select(0, torch.from_numpy(self.order)))
        elif pieces[0].dtype == torch.float32:
            return self._mix_fused(pieces, sizes, all_cores)
        else:
            mixed = self._pairwise(_join(pieces), np.arange(len(self.self_weights)))
        return [mixed] if len(sizes) == 1 else [part.clone() for part in mixed.split(list(sizes))]

    @cached_property
    def _plain(self) -> Bools:
        """A mask of the targets that have several neighbours, all with weight 1, bool [T]."""
        degrees = np.diff(self.first)
        other = np.add.reduceat(np.append(self.weights != 1, False), self.first[:-1]) if len(degrees) else degrees
        plain: Bools = (degrees > 1) & (other == 0)
        return plain

    @cached_property
    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """The terms of the targets' sums: (row number per term, weight per term, first term of each target [T + 1]).

        A target's own row is its first term, unless its weight is 0.
        """
        present = np.insert(np.ones(len(self.sources), dtype=bool), self.first[:-1], self.self_weights != 0)
        sources = np.insert(self.sources, self.first[:-1], self.self_rows)[present]
        weights = np.insert(self.weights, self.first[:-1], self.self_weights)[present]
        first = np.append(0, np.cumsum(present))[self.first + np.arange(len(self.first))]
        return torch.from_numpy(sources), torch.from_numpy(weights).float(), torch.from_numpy(first)

    def _mix_fused(self, pieces: Sequence[Tensor], sizes: Sequence[int], all_cores: bool) -> list[Tensor]:
        """The new rows by sums over edges, in blocks of columns that fit in the caches."""
        sources, weights, first = self._entries
        flat = [piece.flatten(1) for piece in pieces]
        mixed = [flat[0].new_empty(size, flat[0].shape[1]) for size in sizes]
        width = min(max(FLOATS // max(sum(map(len, flat)), 1), 256), 4096)
        plain = np.flatnonzero(self._plain)

        def block(start: int) -> None:
            columns = slice(start, start + width)
            rows = _join([piece[:, columns] for piece in flat])
            sums = embedding_bag(sources, rows, first, mode="sum", per_sample_weights=weights, include_last_offset=True)
            if len(plain):
                sums[torch.from_numpy(plain)] = self._pairwise(rows, plain)
            for part, new in zip(mixed, sums.split(list(sizes)), strict=True):
                part[:, columns] = new

        starts = range(0, flat[0].shape[1], width)
        if all_cores:
            on_all_cores(block, starts)
        else:
            for start in starts:
                block(start)
        return [part.view(len(part), *pieces[0].shape[1:]) for part in mixed]

    def _pairwise(self, rows: Tensor, targets: Ints) -> Tensor:
        """The new rows of these targets: the weighted own row plus the `tree_sum` of the neighbours' weighted rows."""
        diagonal, degrees = self.self_weights[targets], np.diff(self.first)[targets]
        mixed = rows.index_select(0, torch.from_numpy(self.self_rows[targets]))
        mixed *= column(diagonal, rows)
        if (diagonal == 0).any():
            mixed[torch.from_numpy(diagonal == 0)] = 0.0  # 0 times an entry may be -0 or nan
        for degree in np.unique(degrees[degrees > 0]):
            alike = np.flatnonzero(degrees == degree)
            for some in np.array_split(alike, -(-len(alike) * int(degree) * rows[0].numel() // FLOATS)):
                edges = self.first[targets[some]] + np.arange(degree)[:, None]  # [degree, nodes]
                terms = rows.index_select(0, torch.from_numpy(self.sources[edges].ravel()))
                terms = terms.view(*edges.shape, *rows.shape[1:])
                terms *= torch.from_numpy(self.weights[edges]).to(rows).view(*edges.shape, *[1] * (rows.ndim - 1))
                if some[-1] - some[0] == len(some) - 1:  # consecutive targets, as on a regular graph: no copy
                    mixed[some[0] : some[-1] + 1] += tree_sum_in_place(terms)
                else:
                    mixed[torch.from_numpy(some)] += tree_sum_in_place(terms)
        return mixed

    def lazy(self) -> MixingRows:
        """These rows of the matrix (I + W) / 2, where W is the mixing matrix of these rows."""
        return replace(self, self_weights=(1 + self.self_weights) / 2, weights=self.weights / 2)

    def _product(self, rows: Tensor) -> Tensor:
        """The new rows by one matrix-vector product for each target and block of columns.

        In a single product of two matrices, the bits of a row could depend on the number of other rows.
        """
        matrix = np.zeros((len(self.self_weights), len(rows)))
        targets = np.arange(len(self.self_weights))
        matrix[targets, self.self_rows] = self.self_weights
        np.add.at(matrix, (np.repeat(targets, np.diff(self.first)), self.sources), self.weights)
        w, flat = torch.from_numpy(matrix).to(rows), rows.flatten(1)
        mixed = flat.new_empty(len(w), flat.shape[1])
        for start in range(0, flat.shape[1], BLOCK):
            columns = flat[:, start : start + BLOCK].T
            for target, entries in enumerate(w):
                mixed[target, start : start + BLOCK] = torch.mv(columns, entries)
        return mixed.view(len(w), *rows.shape[1:])


def _join(pieces: Sequence[Tensor]) -> Tensor:
    """The rows of all pieces in one tensor."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
