"""Sums whose order is fixed by the cohort alone, so that every machine and worker count gives the same bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def column(values: npt.ArrayLike, like: Tensor) -> Tensor:
    """One number a client as a [C, 1] column in the dtype and on the device of `like`."""
    return torch.as_tensor(np.asarray(values, dtype=np.float64)).to(like)[:, None]


def tree_sum(rows: Tensor) -> Tensor:
    """sum_i rows[i] for rows [C, d] -> [d] by pairwise halving: log2(C) elementwise additions.

    The tree depends on C only, and elementwise additions do not depend on the number of threads.
    Raises ValueError for C = 0: an empty round has no sum, the caller skips it.
    """
    return _halve(rows.clone())


def weighted_sum(rows: Tensor, coefficients: npt.ArrayLike) -> Tensor:
    """sum_i c_i rows[i] for rows [C, d], c [C] -> [d], in the same order as `tree_sum`."""
    return _halve(rows * column(coefficients, rows))


def _halve(terms: Tensor) -> Tensor:
    count = len(terms)
    if count == 0:
        raise ValueError("the sum of no rows is not defined here")
    while count > 1:
        half = (count + 1) // 2
        terms[: count - half] += terms[half:count]
        count = half
    return terms[0]
