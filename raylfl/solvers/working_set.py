"""The min-norm point of the convex hull of many long rows m_i [d], by a working set that the next call reuses.

    lambda = argmin |v|^2,  v = sum_i lambda_i s_i m_i,  over the simplex [n];  s_i = 1, or 1 / |m_i|

Only a few rows have lambda_i > 0 (50 of the momenta of 480 clients with LeNet-5), and only a few rows change between
two calls. The method is column generation, like Wolfe's major cycle (Math. Programming 1976), but all violating rows
are added at once.

     1  W <- the working set of the last call, without rows that became 0, plus all rows that changed since
     2  if W is empty: W <- {the shortest row}
     3  repeat
     4      G <- (s_i m_i . s_j m_j) over W, float64; inner products of unchanged rows are kept from before
     5      lambda <- min_norm_point(G);  v <- sum_W lambda_i s_i m_i
     6      if W has all rows, or |v| is 0 up to the tolerance: stop
     7      V <- {j not in W: s_j m_j . v < |v|^2 - tol |v|^2}       (the optimality condition, violated)
     8      if V is empty: stop;  W <- W + V;  after CYCLES cycles W <- all rows
     9  gap <- (|v|^2 - min_j s_j m_j . v) / |v|^2 over all rows
    10  keep for the next call: i in W with lambda_i > 0 or s_i m_i . v < (1 + SPARE) |v|^2

A cycle costs R |W| + n inner products of width d for R changed rows; the Gram matrix of all rows would cost R n. In
step 7, inner products in the dtype of the rows exclude most rows, with a bound on the rounding error; the others are
computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.core.threads import on_all_cores
from raylfl.solvers.gram import ROWS, inner_products_f64
from raylfl.solvers.simplex import EPS, TINY, min_norm_point, near_zero

CYCLES = 5  # cycles with a working set; the next cycle takes all rows
SPARE = 0.02  # relative slack of step 10: most of the rows within it are soon needed again
TERMS = 1 << 14  # terms of a sum in the dtype of the rows; longer sums continue in float64
ENTRIES = 1 << 18  # entries of the rows that are copied in float64 at a time


@dataclass(frozen=True)
class WorkingSet:
    """A set of w rows of a matrix with their Gram matrix.

    rows: ascending row numbers, int64 [w]. gram: the inner products of these rows, float64 [w, w].
    """

    rows: Ints
    gram: Floats

    @staticmethod
    def none() -> WorkingSet:
        """The empty set, for the first call."""
        return WorkingSet(np.zeros(0, dtype=np.int64), np.zeros((0, 0)))

    def only(self, keep: Bools) -> WorkingSet:
        """The subset given by the mask `keep` [w]."""
        return WorkingSet(self.rows[keep], self.gram[np.ix_(keep, keep)])

    def joined(self, matrix: Tensor, new: Ints) -> WorkingSet:
        """The union of this set and the rows `new`; all inner products of rows in `new` are computed anew."""
        rows = np.union1d(self.rows, new)
        old, fresh = np.searchsorted(rows, self.rows), np.searchsorted(rows, new)
        gram = np.zeros((len(rows), len(rows)))
        gram[np.ix_(old, old)] = self.gram
        theirs = inner_products_f64(matrix, matrix, new, rows).cpu().numpy()
        theirs[:, fresh] = (theirs[:, fresh] + theirs[:, fresh].T) / 2  # symmetric to the last bit
        gram[fresh], gram[:, fresh] = theirs, theirs.T
        return WorkingSet(rows, gram)


@dataclass(frozen=True)
class WorkingSetPoint:
    """A solution of the min-norm problem over n rows m_i.

    weights: lambda_i s_i [n], where s_i is 1 or 1 / |m_i|. point: v = sum_i lambda_i s_i m_i [d], float64. gap: the
    relative duality gap over all rows. members: the working set for the next call.
    """

    weights: Floats
    point: Tensor
    gap: float
    members: WorkingSet


def min_norm_working_set(
    matrix: Tensor, lengths: Floats, known: WorkingSet, changed: Ints, tol: float, normalize: bool = False
) -> WorkingSetPoint:
    """The point v of least norm in the convex hull of the rows m_i with |m_i| > 0; v = 0 if there are none.

    matrix: the rows [n, d]. lengths: |m_i| [n]. known: the working set of the previous call. changed: the numbers of
    rows that are new or have changed since that call. tol: the relative duality gap to stop at, as for
    `min_norm_point`. normalize: whether the rows are divided by their norms first. Raises NonFinite for a non-finite
    inner product.
    """
    there = lengths != 0
    members = known.only(there[known.rows]).joined(matrix, changed[there[changed]])
    weights = np.zeros(len(matrix))
    if not there.any():
        return WorkingSetPoint(weights, matrix.new_zeros(matrix.shape[1], dtype=torch.float64), 0.0, members)
    if not len(members.rows):
        members = members.joined(matrix, np.array([np.where(there, lengths, np.inf).argmin()]))
    scale = 1.0 / np.where(there, lengths, 1.0) if normalize else np.ones(len(matrix))
    for cycle in range(1, CYCLES + 2):
        unit = scale[members.rows]
        gram = members.gram * unit[:, None] * unit
        found = min_norm_point(torch.from_numpy(gram), tol)
        used, slopes, gap = found.weights > 0, gram @ found.weights, found.gap
        weights[members.rows] = found.weights * unit
        point = _combination(matrix, members.rows[used], weights[members.rows[used]])
        others = np.setdiff1d(np.flatnonzero(there), members.rows)
        size = float(weights @ lengths)
        if not len(others) or found.value <= near_zero(tol) * size**2:
            break
        floor = max(found.value, EPS * size**2, TINY)
        limits = (found.value - tol * floor) / scale[others]
        near, theirs = _near(matrix, point, others, limits, lengths[others])
        gap = max(gap, (found.value - float((theirs * scale[others[near]]).min(initial=found.value))) / floor)
        if not (theirs < limits[near]).any():
            break
        members = members.joined(matrix, others if cycle == CYCLES else others[near])
    return WorkingSetPoint(weights, point, gap, members.only(used | (slopes < (1.0 + SPARE) * found.value)))


def _combination(matrix: Tensor, rows: Ints, weights: Floats) -> Tensor:
    factors, index = (torch.from_numpy(values).to(matrix.device) for values in (weights, rows))
    blocks = matrix.split(max(ENTRIES // len(rows), 1), dim=1)
    return torch.cat(on_all_cores(lambda block: factors @ block.index_select(0, index).double(), blocks))


def _near(matrix: Tensor, point: Tensor, rows: Ints, limits: Floats, lengths: Floats) -> tuple[Bools, Floats]:
    """Returns a mask of the rows m_j whose m_j . v may be below its limit, and the float64 m_j . v of these rows.

    point: v. rows: the numbers j of the rows that are tested. limits: the limit of m_j . v for each of them. lengths:
    |m_j|. A row is in the mask if m_j . v, computed in the dtype of the matrix, is below its limit, or above the limit
    by no more than the rounding error. The error of a sum of k products in any order is at most k eps / 2 |m_j| |v|.
    Here k = TERMS, and the bound with eps instead of eps / 2 leaves a margin for the other operations.
    """
    length = float(torch.linalg.vector_norm(point)) or 1.0
    rough = _rough(matrix, point / length)[rows]
    bound = torch.finfo(matrix.dtype).eps * TERMS * lengths
    near = ~(rough > limits / length + bound)  # also true for nan and overflow
    return near, inner_products_f64(point[None], matrix, b_rows=rows[near])[0].cpu().numpy()


def _rough(matrix: Tensor, unit: Tensor) -> Floats:
    """The matrix-vector product matrix @ unit [n], in part rounded to the dtype of the matrix; the result is float64.

    The sum for each entry is cut into blocks of TERMS terms. The terms of a block are added in the dtype of the matrix,
    the sums of the blocks in float64.
    """
    unit = unit.to(matrix.dtype)

    def part(block: Tensor) -> Tensor:
        columns = zip(block.split(TERMS, dim=1), unit.split(TERMS), strict=True)
        return torch.stack([some @ theirs for some, theirs in columns]).double().sum(dim=0)

    return torch.cat(on_all_cores(part, matrix.split(ROWS))).cpu().numpy()
