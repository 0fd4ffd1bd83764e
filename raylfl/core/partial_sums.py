"""Weighted sums of uploads that workers compute in parts, with the same bits as `raylfl.core.reduce.weighted_sum`.

`raylfl.core.reduce.tree_sum` adds R rows in a binary tree with nodes (level, k). Level 0 holds the rows. Node
(l + 1, k) is the sum of the nodes (l, k) and (l, k + half), where `half` is half the number of nodes of level l,
rounded up; if node (l, k + half) does not exist, node (l + 1, k) equals node (l, k). A worker reduces its rows to
the sums of the largest subtrees of which it has all rows, and those of several workers are added to sums of larger
subtrees. The sum of all rows does not depend on their division among workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylfl.core.arrays import Floats, Ints
from raylfl.core.reduce import BLOCK, column
from raylfl.core.threads import on_all_cores
from raylfl.core.transfer import to_device, to_host

CACHED = 2**18  # numbers in a block of columns, all rows together; they fit in the caches
ON_DEVICE = 2**28  # the same on a GPU, where few large calls are fast
NARROWEST = 1024  # least number of columns in a block
SPAN = 2**20  # columns of a thread's piece


class Node(NamedTuple):
    """A node of the summation tree, number k of its level; level 0 holds the rows."""

    level: int
    k: int


SubtreeSums = dict[Node, Tensor]  # root of a subtree -> the sum [d] of its rows
Additions = list[tuple[slice, slice]]  # (left, right): rows[left] += rows[right]


@dataclass(frozen=True)
class SumPlan:
    """The weighted sums of a round's uploads.

    clients: the received clients [R], in the order of the tree's rows. terms: the distinct sums, each given by the name
    of its upload and its coefficients [R]; each is computed once. term_of: name of a sum -> number of its term. dtype:
    the dtype of the uploads and sums.
    """

    clients: Ints
    terms: tuple[tuple[str, Floats], ...]
    term_of: dict[str, int]
    dtype: torch.dtype

    @staticmethod
    def of(clients: Ints, sums: Mapping[str, tuple[str, Floats]], dtype: torch.dtype) -> SumPlan:
        """The plan of these sums, name of the sum -> (name of its upload, coefficients [R]).

        Sums of one upload whose coefficients are equal in the dtype of the uploads share a term.
        """
        numbers: dict[tuple[str, bytes], int] = {}
        terms: list[tuple[str, Floats]] = []
        term_of = {}
        for name, (upload, coefficients) in sums.items():
            values = np.asarray(coefficients, dtype=np.float64)
            key = upload, torch.from_numpy(values).to(dtype).double().numpy().tobytes()
            term_of[name] = numbers.setdefault(key, len(terms))
            if term_of[name] == len(terms):
                terms.append((upload, values))
        return SumPlan(clients, tuple(terms), term_of, dtype)

    def replaces(self, upload: str) -> bool:
        """Whether sums replace the rows of this upload, which are then not sent; also true if no client is received."""
        return not len(self.clients) or upload in dict(self.terms)

    def parts(
        self, clients: Sequence[int], rows: Sequence[Mapping[str, Tensor]], stay: bool = False
    ) -> list[SubtreeSums]:
        """For each of `terms`, the sums of the largest complete subtrees of the uploads of these clients.

        Clients that are not received are left out. rows: the uploads by name, divided among several dicts, whose rows
        follow each other in the order of `clients`. stay: whether the sums stay on the device of the uploads; otherwise
        they are copied to the host.
        """
        places = list(map(self._row_of().get, clients))  # None: not received
        out = []
        for upload, coefficients in self.terms:
            pieces, nodes, start = list[Tensor](), list[int](), 0
            for uploads in rows:
                if upload not in uploads:
                    continue
                values = uploads[upload]
                mine = places[start : (start := start + values.shape[0])]
                if None in mine:
                    kept = torch.tensor([k for k, place in enumerate(mine) if place is not None], dtype=torch.long)
                    values = values[to_device(kept, values.device)]
                pieces.append(values)
                nodes += [place for place in mine if place is not None]
            if nodes:
                factors = column(coefficients[nodes], pieces[0])
                sums = _subtree_sums(pieces, factors, [(0, k) for k in nodes], len(self.clients), stay)
            out.append(sums if nodes else {})
        return out

    def vectors(self, clients: Sequence[int]) -> int:
        """The number of vectors [d] (subtree sums of all `terms`) to which the uploads of these clients add up."""
        row_of = self._row_of()
        rows = tuple((0, row_of[client]) for client in clients if client in row_of)
        return len(self.terms) * len(_additions(rows, len(self.clients))[1])

    def sums(self, parts: Sequence[Sequence[SubtreeSums]]) -> dict[str, Tensor]:
        """The sums [d] by name, without the sums of uploads that no client sent.

        parts: the results of the method `parts` on each worker.
        """
        terms = add_up(parts, len(self.clients))
        assert all(len(sums) < 2 for sums in terms), f"the parts leave {terms} of a sum of {len(self.clients)} rows"
        return {name: total for name, t in self.term_of.items() if parts for total in terms[t].values()}

    def _row_of(self) -> dict[int, int]:
        """Client -> its row in the tree."""
        return dict(zip(self.clients.tolist(), range(len(self.clients)), strict=True))


def depth_first(count: int) -> Ints:
    """The position of each of the summation tree's `count` rows in depth-first order; subtrees are contiguous in it.

    >>> depth_first(4).tolist()  # 0 + 2 and 1 + 3 are added first
    [0, 2, 1, 3]
    """
    counts = [max(count, 1)]
    while counts[-1] > 1:
        counts.append((counts[-1] + 1) // 2)
    order = [0]
    for half, below in zip(counts[:0:-1], counts[-2::-1], strict=True):
        order = [j for k in order for j in (k, k + half) if j < below]
    places = np.empty(count, dtype=np.int64)
    places[order[:count]] = np.arange(count)
    return places


def in_subtrees(count: int, pieces: int) -> list[Ints]:
    """The numbers of the summation tree's `count` rows in groups of nearly equal sizes that add up to few subtree sums.

    pieces: the number of groups.

    >>> [rows.tolist() for rows in in_subtrees(8, 2)]
    [[0, 4, 2, 6], [1, 5, 3, 7]]
    """
    order = np.argsort(depth_first(count))
    return [order[count * k // pieces : count * (k + 1) // pieces] for k in range(pieces)]


def add_up(parts: Sequence[Sequence[SubtreeSums]], count: int, stay: bool = False) -> list[SubtreeSums]:
    """Adds up the subtree sums of several workers, on all cores, wherever they form a larger complete subtree.

    parts: for each worker, its subtree sums of each weighted sum. count: the number of rows of the whole tree. Returns
    the new subtree sums of each weighted sum. stay: as in `SumPlan.parts`.
    """
    out = list[SubtreeSums]()
    for terms in zip(*parts, strict=True):
        rows = {node: row for sums in terms for node, row in sums.items()}
        if len(rows) > 1:
            rows = _subtree_sums([row[None] for row in rows.values()], None, list(rows), count, stay, all_cores=True)
        out.append(rows)
    return out


def columns_of(part: Sequence[SubtreeSums], k: int, pieces: int) -> list[SubtreeSums]:
    """Block k of the columns of all subtree sums [d], as views.

    part: the subtree sums of each weighted sum. pieces: the number of blocks, of nearly equal widths.
    """
    return [{node: row.tensor_split(pieces)[k] for node, row in sums.items()} for sums in part]


def side_by_side(pieces: Sequence[Sequence[SubtreeSums]]) -> list[SubtreeSums]:
    """The subtree sums of each weighted sum, from the blocks of columns that `columns_of` returned for k = 0, 1, ..."""
    return [
        {node: torch.cat([piece[t][node] for piece in pieces]) for node in sums} for t, sums in enumerate(pieces[0])
    ]


def _subtree_sums(
    pieces: Sequence[Tensor],
    factors: Tensor | None,
    nodes: Sequence[tuple[int, int]],
    count: int,
    stay: bool,
    all_cores: bool = False,
) -> SubtreeSums:
    """The sums of the largest complete subtrees to which these nodes add up, in a tree of `count` rows.

    pieces: rows [n, d] that are the values of `nodes` in order. factors: of the rows, [*, 1]; None: 1. stay: as in
    `SumPlan.parts`. all_cores: whether spans of columns on the host are added in parallel.
    """
    first = pieces[0]
    additions, roots = _additions(tuple(nodes), count)
    width = first.shape[1]
    out = first.new_empty(len(roots), width)
    on_host = first.device.type == "cpu"
    step = max(NARROWEST, min(BLOCK, CACHED // len(nodes))) if on_host else max(NARROWEST, ON_DEVICE // len(nodes))

    def add(span: slice) -> None:
        memory = first.new_empty(len(nodes), min(step, width))
        for start in range(span.start, span.stop, step):
            block = slice(start, min(start + step, span.stop))
            terms, position = memory[:, : block.stop - start], 0
            for rows in pieces:
                these = slice(position, (position := position + rows.shape[0]))
                if factors is None:
                    terms[these].copy_(rows[:, block])
                else:
                    torch.mul(rows[:, block], factors[these], out=terms[these])
            for left, right in additions:
                terms[left] += terms[right]
            for k, (_, slot) in enumerate(roots):
                out[k, block] = terms[slot]

    spans = [slice(start, min(start + SPAN, width)) for start in range(0, width, SPAN)]
    if all_cores and on_host:
        on_all_cores(add, spans)
    else:
        for span in spans:
            add(span)
    out = out if stay else to_host(out)
    return {node: out[k] for k, (node, _) in enumerate(roots)}


@lru_cache(maxsize=128)  # of every round, if no upload is lost
def _additions(nodes: tuple[tuple[int, int], ...], count: int) -> tuple[Additions, list[tuple[Node, int]]]:
    """The additions that reduce these nodes to the largest complete subtrees, and the subtrees' roots with their slots.

    A slot is a position in `nodes`, and the place of the node's row in memory. An addition adds rows in place, in the
    slot of the left row. count: the number of rows of the whole tree.
    """
    levels: dict[int, dict[int, int]] = {}
    for slot, (level, k) in enumerate(nodes):
        levels.setdefault(level, {})[k] = slot
    additions: Additions = []
    roots: list[tuple[Node, int]] = []
    level = 0
    while count > 1:
        half = (count + 1) // 2
        slots, above = levels.get(level, {}), levels.setdefault(level + 1, {})
        pairs = []
        for k, slot in slots.items():
            partner = k + half if k < half else k - half
            if partner in slots:
                if k < half:
                    pairs.append((slot, slots[partner]))
                    above[k] = slot
            elif k < half and partner >= count:
                above[k] = slot
            else:
                roots.append((Node(level, k), slot))
        additions += _slices(sorted(pairs))
        level, count = level + 1, half
    roots += [(Node(level, k), slot) for k, slot in levels.get(level, {}).items()]
    return additions, roots


def _slices(pairs: Sequence[tuple[int, int]]) -> Additions:
    """Pairs of slots (left, right), ascending in `left`, as pairs of slices, which give views.

    >>> _slices([(0, 1), (2, 3), (4, 5), (6, 7), (8, 10)])
    [(slice(0, 7, 2), slice(1, 8, 2)), (slice(8, 9, 1), slice(10, 11, 1))]
    """
    out: Additions = []
    start = 0
    while start < len(pairs):
        end, step = start + 1, (1, 1)
        if end < len(pairs) and pairs[end][1] > pairs[start][1]:
            step = _difference(pairs[end], pairs[start])
            while end < len(pairs) and _difference(pairs[end], pairs[end - 1]) == step:
                end += 1
        first, last = pairs[start], pairs[end - 1]
        out.append((slice(first[0], last[0] + 1, step[0]), slice(first[1], last[1] + 1, step[1])))
        start = end
    return out


def _difference(b: tuple[int, int], a: tuple[int, int]) -> tuple[int, int]:
    return b[0] - a[0], b[1] - a[1]
