"""Elementwise steps on long vectors, on all cores and without temporary vectors."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from raylfl.core.threads import on_all_cores

SPAN = 2**18  # numbers in a block; the temporary results of a block fit in the caches


def elementwise(step: Callable[..., tuple[Tensor, ...]], *vectors: Tensor) -> tuple[Tensor, ...]:
    """The vectors step(*vectors), computed on one block of entries at a time, with the same bits.

    Entry j of a result may depend on the entries j of the vectors only.

    >>> elementwise(lambda x, u: (x - 0.5 * u,), Tensor([1.0, 2.0]), Tensor([2.0, 4.0]))
    (tensor([0., 0.]),)
    """
    width = len(vectors[0])
    if width <= SPAN:
        return step(*vectors)
    out = tuple(empty.new_empty(width) for empty in step(*(vector[:0] for vector in vectors)))

    def block(start: int) -> None:
        span = slice(start, min(start + SPAN, width))
        for whole, part in zip(out, step(*(vector[span] for vector in vectors)), strict=True):
            whole[span] = part

    on_all_cores(block, range(0, width, SPAN))
    return out
