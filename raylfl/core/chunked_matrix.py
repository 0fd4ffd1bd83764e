"""Matrices whose rows are in several tensors, and functions of their blocks of columns on all cores, without copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from raylfl.core.arrays import Ints
from raylfl.core.threads import on_all_cores, one_thread

LARGE = 32 * 2**20  # bytes of the smallest matrix whose rows stay in several tensors
NARROWEST = 8192  # least number of columns in a block; slicing many pieces more finely takes longer than adding them
SPAN = 2**18  # numbers in a block; the temporary results of a block fit in the caches
LIGHT = 2**21  # numbers; for a step of two operations, fewer are faster in one call than divided among threads
FACTORIES = (torch.ops.aten.new_empty.default, torch.ops.aten.new_zeros.default)  # operators that read no entry


class ChunkedMatrix(Tensor):
    """A matrix [R, d] of the rows of several tensors [n_j, d] (`pieces`), without a copy.

    The functions `columns`, `select` and `norms` read the pieces. All other operations read a copy of the whole matrix,
    which is made once. The matrix must not be written.
    """

    pieces: list[Tensor]

    @staticmethod
    def __new__(cls, pieces: Sequence[Tensor]) -> ChunkedMatrix:
        """A matrix of the rows of these pieces, at least one row each."""
        first = pieces[0]
        shape = (sum(map(len, pieces)), *first.shape[1:])
        out: ChunkedMatrix = Tensor._make_wrapper_subclass(cls, shape, dtype=first.dtype, device=first.device)
        return out

    def __init__(self, pieces: Sequence[Tensor]):
        self.pieces = list(pieces)
        self._whole: Tensor | None = None

    def whole(self) -> Tensor:
        """The copy of all rows in one tensor, which is made once."""
        if self._whole is None:
            self._whole = torch.cat(self.pieces)
        return self._whole

    def numpy(self, *, force: bool = False) -> np.ndarray:
        return self.whole().numpy(force=force)

    def tolist(self) -> Any:
        return self.whole().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub has no argument `func`
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in FACTORIES:
            return func(args[0].pieces[0], *args[1:], **(kwargs or {}))
        args, kwargs = tree_map(lambda v: v.whole() if isinstance(v, ChunkedMatrix) else v, (args, kwargs or {}))
        return func(*args, **kwargs)


def columns(rows: Tensor, span: slice) -> Tensor:
    """The columns `span` of rows [..., d]: a view, or a copy if `rows` is a `ChunkedMatrix`."""
    if isinstance(rows, ChunkedMatrix):
        return torch.cat([piece[:, span] for piece in rows.pieces])
    return rows[..., span]


def select(rows: Tensor, index: Sequence[int]) -> Tensor:
    """The n rows numbered `index` [n, d]: a copy, or a `ChunkedMatrix` of views if `rows` is one."""
    if not isinstance(rows, ChunkedMatrix):
        return rows[torch.as_tensor(index, dtype=torch.int64)]
    if not len(index):
        return rows.pieces[0][:0]
    each = [row for piece in rows.pieces for row in piece.split(1)]
    return ChunkedMatrix([each[k] for k in index])


def norms(rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The norms |rows[i]| of rows [R, d] -> [R], with the same bits for `ChunkedMatrix` as for other tensors.

    dtype: the dtype of the computation and the result; None: the dtype of the rows.
    """
    if not isinstance(rows, ChunkedMatrix):
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
        return lengths
    with one_thread():  # a single row would be divided among the threads
        each = [torch.linalg.vector_norm(row, dim=1, dtype=dtype) for piece in rows.pieces for row in piece.split(1)]
    return torch.cat(each)


def as_matrix(pieces: Sequence[Tensor], order: Ints | None = None) -> Tensor:
    """A matrix of the rows of all pieces: a `ChunkedMatrix` if they have LARGE bytes or more, otherwise a copy.

    Empty pieces are left out. A single piece, and pieces that are not 2-d, are always copied. order: row k of the
    matrix is row order[k] of all pieces, counted from the first piece on; None: 0, 1, ...

    >>> as_matrix([torch.zeros(1, 3), torch.zeros(2, 3)]).shape
    torch.Size([3, 3])
    """
    nonempty = [piece for piece in pieces if len(piece)] or list(pieces[:1])
    if order is not None and len(order):
        rows = [row for piece in nonempty for row in piece.split(1)]
        nonempty = [rows[k] for k in order]
    size = sum(piece.numel() * piece.element_size() for piece in nonempty)
    if len(nonempty) < 2 or nonempty[0].ndim != 2 or size < LARGE:
        return torch.cat(nonempty)
    return ChunkedMatrix(nonempty)


def elementwise(step: Callable[..., tuple[Tensor, ...]], *vectors: Tensor, at_once: int = SPAN) -> tuple[Tensor, ...]:
    """The tensors step(*vectors), computed on blocks of columns in parallel, with the same bits as one call.

    vectors: vectors [d] or matrices [R, d]. Column j of a result must depend on columns j of the vectors only. at_once:
    up to this number of columns there is one call, and on a GPU always.

    >>> elementwise(lambda x, u: (x - 0.5 * u,), Tensor([1.0, 2.0]), Tensor([2.0, 4.0]))
    (tensor([0., 0.]),)
    """
    one_call = vectors[0].shape[-1] <= at_once or vectors[0].device.type != "cpu"
    if one_call and not any(isinstance(vector, ChunkedMatrix) for vector in vectors):
        return step(*vectors)
    empty = step(*(columns(vector, slice(0, 0)) for vector in vectors))
    out = tuple(none.new_empty(*none.shape[:-1], vectors[0].shape[-1]) for none in empty)

    def block(span: slice) -> None:
        for result, part in zip(out, step(*(columns(vector, span) for vector in vectors)), strict=True):
            result[..., span] = part

    on_all_cores(block, spans(*vectors))
    return out


def spans(*vectors: Tensor) -> list[slice]:
    """Slices that cut the columns of these vectors [d] and matrices [R, d] into blocks of SPAN numbers or more."""
    width, rows = vectors[0].shape[-1], max(len(v) if v.ndim > 1 else 1 for v in vectors)
    step = max(SPAN // rows, NARROWEST)
    return [slice(start, min(start + step, width)) for start in range(0, width, step)]
