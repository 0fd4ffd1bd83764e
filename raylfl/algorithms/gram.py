"""Products of long rows in float64, whatever their own dtype: what Gram matrices are made of.

Momenta that nearly cancel are what is looked for: in float32 the products of d terms would lose them.
"""

from __future__ import annotations

from functools import partial, reduce

import torch
from torch import Tensor

from raylfl.core.cores import on_all_cores
from raylfl.core.population import Ints

ROWS, COLUMNS = 64, 8192  # of the matrix at a time: their float64 copies stay in the caches
SPANS, NARROWEST = 8, 2048  # parts of all columns at most, each the work of one core; columns of one at least


def products(rows: Tensor, matrix: Tensor, which: Ints | None = None) -> Tensor:
    """rows @ matrix[which]^T, [R, d] and [n, d] -> float64 [R, w]; which: rows of the matrix, None: all of them."""
    index = torch.arange(len(matrix)) if which is None else torch.as_tensor(which)
    width = max(-(-matrix.shape[1] // SPANS), NARROWEST)
    spans = zip(rows.split(width, dim=1), matrix.split(width, dim=1), strict=True)
    parts = on_all_cores(partial(_products, index.to(matrix.device).split(ROWS)), spans)
    return reduce(Tensor.add_, parts)


def _products(which: tuple[Tensor, ...], span: tuple[Tensor, Tensor]) -> Tensor:
    """Of one span of columns."""
    rows, matrix = span
    out = rows.new_zeros(len(rows), sum(map(len, which)), dtype=torch.float64)
    for some, all_ in zip(rows.split(COLUMNS, dim=1), matrix.split(COLUMNS, dim=1), strict=True):
        ours = some.double()
        for sums, index in zip(out.split(ROWS, dim=1), which, strict=True):
            sums.addmm_(ours, all_.index_select(0, index).double().T)
    return out
