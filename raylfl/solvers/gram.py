"""Products of long rows in float64, whatever their own dtype: what Gram matrices are made of.

Momenta that nearly cancel are what is looked for: in float32 the products of d terms would lose them.
"""

from __future__ import annotations

from functools import partial, reduce

import torch
from torch import Tensor

from raylfl.core.population import Ints
from raylfl.core.threads import on_all_cores

ROWS, COLUMNS = 64, 8192  # of the matrix at a time: their float64 copies stay in the caches
SPANS, NARROWEST = 8, 2048  # parts of all columns at most, each the work of one core; columns of one at least


def products(a: Tensor, b: Tensor, a_rows: Ints | None = None, b_rows: Ints | None = None) -> Tensor:
    """a[a_rows] @ b[b_rows]^T, [R, d] and [n, d] -> float64; None: all rows. Copies parts only."""
    width = max(-(-b.shape[1] // SPANS), NARROWEST)
    spans = zip(a.split(width, dim=1), b.split(width, dim=1), strict=True)
    return reduce(Tensor.add_, on_all_cores(partial(_products, _index(a, a_rows), _index(b, b_rows)), spans))


def _products(a_rows: Tensor, b_rows: Tensor, span: tuple[Tensor, Tensor]) -> Tensor:
    """Of one span of columns."""
    out = span[0].new_zeros(len(a_rows), len(b_rows), dtype=torch.float64)
    for a, b in zip(*(matrix.split(COLUMNS, dim=1) for matrix in span), strict=True):
        left = a.index_select(0, a_rows).double()
        for sums, rows in zip(out.split(ROWS, dim=1), b_rows.split(ROWS), strict=True):
            sums.addmm_(left, b.index_select(0, rows).double().T)
    return out


def _index(matrix: Tensor, rows: Ints | None) -> Tensor:
    return torch.arange(len(matrix), device=matrix.device) if rows is None else torch.from_numpy(rows).to(matrix.device)
