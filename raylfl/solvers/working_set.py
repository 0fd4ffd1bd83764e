"""The point nearest to 0 of the hull of many long rows, a few of which change from one call to the next.

    lambda = argmin |v|^2,  v = sum_i lambda_i s_i m_i,  over the simplex [n];  s_i = 1, or 1 / |m_i|

Mostly v is made of few of the rows (50 of the momenta of 480 clients with LeNet-5). So the dense problem, by
`min_norm_point`, is that of members only: those that v was made of last time, or nearly, and those that changed since.
Whoever would shorten its v, s_j m_j . v < |v|^2, joins them, until there is nobody: the major cycle of Wolfe (Math.
Programming 1976), for all of them at once. A cycle costs R w + n products of width d, a Gram matrix of all R n.

Who joins is decided in float64; that all others need not, in the dtype of the rows, with a bound on its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raylfl.core.population import Bools, Floats, Ints
from raylfl.core.threads import on_all_cores
from raylfl.solvers.gram import ROWS, products
from raylfl.solvers.simplex import EPS, TINY, min_norm_point, near_zero

CYCLES = 5  # over members; the next is over all rows
SPARE = 0.02  # members not needed stay while they are so near to it: they are mostly needed again soon
TERMS = 1 << 14  # summed in the dtype of the rows
ENTRIES = 1 << 18  # of the rows, copied in float64 at a time


@dataclass(frozen=True)
class Members:
    """rows: which they are, int64 [w], ascending; gram: their products, float64 [w, w]."""

    rows: Ints
    gram: Floats

    @staticmethod
    def none() -> Members:
        """Before the first call."""
        return Members(np.zeros(0, dtype=np.int64), np.zeros((0, 0)))

    def only(self, keep: Bools) -> Members:
        """Those of the mask [w]."""
        return Members(self.rows[keep], self.gram[np.ix_(keep, keep)])

    def joined(self, matrix: Tensor, new: Ints) -> Members:
        """With rows `new` of the matrix: others, or members that are not what they were."""
        rows = np.union1d(self.rows, new)
        old, fresh = np.searchsorted(rows, self.rows), np.searchsorted(rows, new)
        gram = np.zeros((len(rows), len(rows)))
        gram[np.ix_(old, old)] = self.gram
        theirs = products(matrix, matrix, new, rows).cpu().numpy()
        theirs[:, fresh] = (theirs[:, fresh] + theirs[:, fresh].T) / 2  # symmetric to the last bit
        gram[fresh], gram[:, fresh] = theirs, theirs.T
        return Members(rows, gram)


@dataclass(frozen=True)
class Nearest:
    """weights: lambda_i s_i [n]; point: v [d], float64; gap: relative, over all rows; members: for the next call."""

    weights: Floats
    point: Tensor
    gap: float
    members: Members


def nearest(
    matrix: Tensor, lengths: Floats, known: Members, changed: Ints, tol: float, normalize: bool = False
) -> Nearest:
    """v of the rows m_i [n, d] of lengths |m_i| [n], without those that are 0; v = 0 where all are.

    known: members after the call before; changed: the rows that are new or different since then.
    tol: the relative duality gap to stop at, as for `min_norm_point`. normalize: s_i = 1 / |m_i|.
    Raises NonFinite where a product that is needed is not finite.
    """
    there = lengths != 0
    members = known.only(there[known.rows]).joined(matrix, changed[there[changed]])
    weights = np.zeros(len(matrix))
    if not there.any():
        return Nearest(weights, matrix.new_zeros(matrix.shape[1], dtype=torch.float64), 0.0, members)
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
    return Nearest(weights, point, gap, members.only(used | (slopes < (1.0 + SPARE) * found.value)))


def _combination(matrix: Tensor, rows: Ints, weights: Floats) -> Tensor:
    """sum_i weights_i matrix[rows_i], float64 [d]: some columns at a time."""
    factors, index = (torch.from_numpy(values).to(matrix.device) for values in (weights, rows))
    blocks = matrix.split(max(ENTRIES // len(rows), 1), dim=1)
    return torch.cat(on_all_cores(lambda block: factors @ block.index_select(0, index).double(), blocks))


def _near(matrix: Tensor, point: Tensor, rows: Ints, limits: Floats, lengths: Floats) -> tuple[Bools, Floats]:
    """(which of these rows have m_j . v below their limits, or too near to tell in their dtype; m_j . v of those).

    A sum of k products, in whatever order, is off by at most k eps / 2 |m_j| |v|; here k = TERMS, and eps is a margin
    for the rest.
    """
    length = float(torch.linalg.vector_norm(point)) or 1.0
    rough = _rough(matrix, point / length)[rows]
    bound = torch.finfo(matrix.dtype).eps * TERMS * lengths
    near = ~(rough > limits / length + bound)  # those that overflow, too
    return near, products(point[None], matrix, b_rows=rows[near])[0].cpu().numpy()


def _rough(matrix: Tensor, unit: Tensor) -> Floats:
    """matrix @ unit, [n]: float64 sums of sums of TERMS products in the dtype of the matrix."""
    unit = unit.to(matrix.dtype)

    def part(block: Tensor) -> Tensor:
        columns = zip(block.split(TERMS, dim=1), unit.split(TERMS), strict=True)
        return torch.stack([some @ theirs for some, theirs in columns]).double().sum(dim=0)

    return torch.cat(on_all_cores(part, matrix.split(ROWS))).cpu().numpy()
