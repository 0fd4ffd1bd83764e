"""Inner products of long vectors in float64, for vectors of any dtype.

The min-norm problem needs float64 where vectors nearly cancel: float32 sums of d terms are too inaccurate there.
"""

from functools import partial, reduce

import torch
from torch import Tensor

from raylfl.core.arrays import Ints
from raylfl.core.chunked_matrix import columns
from raylfl.core.threads import on_all_cores

ROWS, COLUMNS = 64, 8192  # entries that are copied in float64 at a time: the copies stay in the caches
SPANS, NARROWEST = 8, 2048  # largest number of spans of columns, one thread each; least number of columns in a span


def inner_products_f64(a: Tensor, b: Tensor, a_rows: Ints | None = None, b_rows: Ints | None = None) -> Tensor:
    """The inner products a[a_rows] @ b[b_rows]^T in float64 [R, n], for rows [., d] of a and b.

    a_rows, b_rows: the numbers of R rows of a and n rows of b; None: all rows.
    """
    count = b.shape[1]
    width = max(-(-count // SPANS), NARROWEST)
    spans = [range(start, min(start + width, count)) for start in range(0, count, width)]
    return reduce(Tensor.add_, on_all_cores(partial(_span_products, a, _index(a, a_rows), b, _index(b, b_rows)), spans))


def _span_products(a: Tensor, a_rows: Tensor, b: Tensor, b_rows: Tensor, span: range) -> Tensor:
    out = torch.zeros(len(a_rows), len(b_rows), dtype=torch.float64, device=a.device)
    for start in span[::COLUMNS]:
        block = slice(start, min(start + COLUMNS, span.stop))
        of_a = columns(a, block)
        of_b = of_a if a is b else columns(b, block)
        left = of_a.index_select(0, a_rows).double()
        for sums, rows in zip(out.split(ROWS, dim=1), b_rows.split(ROWS), strict=True):
            sums.addmm_(left, of_b.index_select(0, rows).double().T)
    return out


def _index(matrix: Tensor, rows: Ints | None) -> Tensor:
    return torch.arange(len(matrix), device=matrix.device) if rows is None else torch.from_numpy(rows).to(matrix.device)
