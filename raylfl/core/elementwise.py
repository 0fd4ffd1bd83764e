"""Columnwise functions of long vectors and matrices, computed on all cores without temporary vectors."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from raylfl.core.chunked_matrix import NARROWEST, ChunkedMatrix, columns
from raylfl.core.threads import on_all_cores

SPAN = 2**18  # numbers in a block; the temporary results of a block fit in the caches
LIGHT = 2**21  # numbers; for a step of two operations, fewer are faster in one call than divided among threads


def elementwise(step: Callable[..., tuple[Tensor, ...]], *vectors: Tensor, at_once: int = SPAN) -> tuple[Tensor, ...]:
    """The tensors step(*vectors), computed on blocks of columns in parallel, with the same bits as one call.

    vectors: vectors [d] or matrices [R, d]. Column j of a result must depend on columns j of the vectors only. at_once:
    up to this number of columns there is one call.

    >>> elementwise(lambda x, u: (x - 0.5 * u,), Tensor([1.0, 2.0]), Tensor([2.0, 4.0]))
    (tensor([0., 0.]),)
    """
    if not any(isinstance(vector, ChunkedMatrix) for vector in vectors) and vectors[0].shape[-1] <= at_once:
        return step(*vectors)
    empty = step(*(columns(vector, slice(0, 0)) for vector in vectors))
    out = tuple(none.new_empty(*none.shape[:-1], vectors[0].shape[-1]) for none in empty)

    def block(span: slice) -> None:
        for result, part in zip(out, step(*(columns(vector, span) for vector in vectors)), strict=True):
            result[..., span] = part

    on_all_cores(block, spans(*vectors))
    return out


def spans(*vectors: Tensor) -> list[slice]:
    """Slices that cut the columns of these vectors [d] and matrices [R, d] into blocks of about SPAN numbers.

    A block has at least NARROWEST columns, except for the last block.
    """
    width, rows = vectors[0].shape[-1], max(len(v) if v.ndim > 1 else 1 for v in vectors)
    step = max(SPAN // rows, NARROWEST)
    return [slice(start, min(start + step, width)) for start in range(0, width, step)]
