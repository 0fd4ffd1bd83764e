"""The min-norm point of the convex hull of n vectors, from their Gram matrix: a problem of FedAWARE and FedMGDA+.

    lambda = argmin |sum_i lambda_i m_i|^2 = argmin lambda^T G lambda,  G = M M^T [n, n], m_i the rows of M,
    over the simplex (FedAWARE, eq. (8)), or its part with |lambda - centre|_inf <= radius (FedMGDA+).

1. Block principal pivoting (Portugal, Judice & Vicente, Math. Comp. 1994): solve G lambda = c 1 on a support, with the
   number c for which lambda has sum 1; move all indices that violate optimality into or out of the support in one
   exchange; repeat. Usually a few linear solves suffice.
2. If step 1 does not apply or does not end (a hull that contains 0, dependent vectors, a centre, too many vectors):
   pairwise Frank-Wolfe (Lacoste-Julien & Jaggi, NeurIPS 2015) with exact line search. Weight is moved to the index with
   the smallest gradient from the index with the largest gain (Fan, Chen & Lin, JMLR 2005, WSS 2).
3. After n, 2n, 4n, ... moves, and at the end, an active-set method (Wolfe, Math. Programming 1976) solves the problem
   exactly from the current point. Its solution is kept if its duality gap is no larger or its value lower.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from raylfl.core.arrays import Floats
from raylfl.core.threads import one_thread
from raylfl.errors import NonFinite

EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)
EXCHANGES = 20  # largest number of steps of block pivoting
MOVES = 128  # largest number of pairwise moves, as a multiple of n
SOLVES = 300_000_000  # bound of the sum of k^3 over the exact steps of one active-set call; k: number of free weights


def near_zero(tol: float) -> float:
    """The largest |sum_i lambda_i m_i|^2 / (sum_i lambda_i |m_i|)^2 at which a hull counts as containing 0.

    m_i: the vectors of the hull. lambda: a point of the simplex. tol: the tolerance of `min_norm_point`. The result is
    tol^2, or 0 if tol^2 is below float64 rounding.
    """
    return tol**2 if tol**2 > EPS else 0.0


@dataclass(frozen=True)
class MinNorm:
    """A solution lambda of the min-norm problem with Gram matrix G.

    weights: lambda [n], sum 1. value: lambda^T G lambda. gap: the relative duality gap.
    """

    weights: Floats
    value: float
    gap: float

    @property
    def support(self) -> int:
        """The number of weights that are not 0."""
        return int((self.weights > 0).sum())


def min_norm_point(gram: Tensor, tol: float = 1e-12, centre: Floats | None = None, radius: float = 1.0) -> MinNorm:
    """The lambda that minimises lambda^T G lambda over the simplex [n] (FedAWARE, eq. (8)).

    gram: G = M M^T [n, n] for vectors m_i (rows of M), n >= 1. tol: the relative duality gap to stop at,
    (lambda^T G lambda - min_v v^T G lambda) / lambda^T G lambda over feasible v. centre: a point [n] of the simplex,
    which adds the bound |lambda - centre|_inf <= radius (FedMGDA+); None: no bound.

    At gap tol the value is at most 1 / (1 - tol)^2 times the minimum. If the convex hull of the m_i contains 0, no
    relative gap can be reached; the search then ends when |sum_i lambda_i m_i| <= tol sum_i lambda_i |m_i|, or at
    rounding error. Raises NonFinite if G has a non-finite entry.
    """
    import scipy.linalg  # noqa: F401  a slow import, so not above; before `one_thread`, which must find its BLAS

    g = gram.detach().cpu().double().numpy()
    if not np.isfinite(g).all():
        raise NonFinite("the updates' Gram matrix has a non-finite entry: one client's update already had")
    scale = float(g.diagonal().max()) or 1.0
    with one_thread():
        x, value, gap = _Problem(g / scale, tol, centre, radius).solution()
    return MinNorm(x, value * scale, gap)


class _Problem:
    """The problem min x^T G x over low <= x <= high with sum x = 1, scaled so that the largest G_ii is 1."""

    def __init__(self, g: Floats, tol: float, centre: Floats | None, radius: float):
        n = len(g)
        self.g, self.tol, self.centre = g, tol, centre
        self.near_zero = near_zero(tol)
        self.low = np.zeros(n) if centre is None else np.maximum(centre - radius, 0.0)
        self.high = np.ones(n) if centre is None else np.minimum(centre + radius, 1.0)
        self.norms = np.sqrt(np.maximum(g.diagonal(), 0.0))

    def solution(self) -> tuple[Floats, float, float]:
        """Solves the problem; returns x, its value x^T G x and its relative duality gap."""
        x, moves, length = self.start(), 0, len(self.g)
        if (found := self.block_pivoting(x)) is not None:
            x = found
        value, gap = self.certificate(x)
        while gap > self.tol and moves < MOVES * len(x):
            x, count = self.pairwise(x, length)
            moves += count
            value, gap = self.certificate(x)
            exact = self.active_set(x)
            lower, narrower = self.certificate(exact)
            if narrower <= gap or lower < value - self.rounding(x):
                x, value, gap = exact, lower, narrower
            if count < length:  # no move reduces the value
                break
            length = moves  # exact solutions after n, 2n, 4n, ... moves
        return x, value, gap

    def start(self) -> Floats:
        """The centre if there is one, else the better of all weight on the shortest vector and x_i ~ 1 / G_ii.

        The latter is the minimum for orthogonal vectors, and close to it for most vectors of high dimension.
        """
        if self.centre is not None:
            return self.centre.astype(np.float64)
        shortest: Floats = (np.arange(len(self.g)) == self.norms.argmin()).astype(np.float64)
        if self.norms.min() == 0.0:
            return shortest
        inverse = (self.norms.min() / self.norms) ** 2
        orthogonal = inverse / inverse.sum()
        return min(shortest, orthogonal, key=lambda x: float(x @ self.g @ x))

    def block_pivoting(self, x: Floats) -> Floats | None:
        """The minimum over the simplex by block principal pivoting from x; None if it does not apply or does not end.

        On a support (a set of indices with weights), x is proportional to G^-1 1. All indices with negative weights
        leave it, and all indices whose gradient (G x)_i is smaller than the value x^T G x enter it, until there are no
        such indices. The first support is the indices with (G x)_i no larger than the value at the given x.
        """
        if self.centre is not None or len(x) ** 3 > SOLVES or self.norms.min() == 0.0:
            return None
        gradient = self.g @ x
        inside = gradient <= float(x @ gradient)
        for _ in range(EXCHANGES):
            unit = 1.0 / self.norms[inside]  # in the unknowns lambda_i |m_i| the Gram matrix has a unit diagonal
            solve = _solver(self.g[np.ix_(inside, inside)] * unit[:, None] * unit) if inside.any() else None
            if solve is None:
                return None
            x = np.zeros(len(x))
            x[inside] = unit * solve(unit)
            x /= x.sum()
            gradient = self.g @ x
            wrong = np.where(inside, x < 0.0, gradient < (1.0 - self.tol) * float(x @ gradient))
            if not wrong.any():
                return x
            inside ^= wrong
        return None

    def rounding(self, x: Floats) -> float:
        """The rounding error of x^T G x in float64."""
        return EPS * float(self.norms @ x) ** 2

    def certificate(self, x: Floats) -> tuple[float, float]:
        """The value x^T G x, and the relative duality gap at x.

        The gap needs the feasible v with the smallest v^T G x: every v_i has at least its lower bound, and the
        remaining weight is given to the indices in the order of rising (G x)_i, up to their upper bounds.
        """
        gradient = self.g @ x
        value = max(float(x @ gradient), 0.0)
        order = np.argsort(gradient)
        room = (self.high - self.low)[order]
        fill = np.clip(1.0 - self.low.sum() - (np.cumsum(room) - room), 0.0, room)
        gap = value - float(self.low @ gradient + fill @ gradient[order])
        return value, max(gap, 0.0) / max(value, self.rounding(x), TINY)

    def pairwise(self, x: Floats, most: int) -> tuple[Floats, int]:
        """Makes at most `most` pairwise Frank-Wolfe moves from x; returns the new point and the number of moves.

        It stops earlier if the tolerance is reached or no move reduces the value.
        """
        x, g, norms, diagonal = x.copy(), self.g, self.norms, self.g.diagonal().copy()
        gradient = g @ x
        value, size = float(x @ gradient), float(norms @ x)
        full = np.where(x < self.high, 0.0, np.inf)
        movable = (x > self.low).astype(np.float64)
        for count in range(most):
            i = int((gradient + full).argmin())
            drop = (gradient - gradient[i]) * movable  # half of the decrease per unit of weight moved from j to i
            if drop.max() <= self.tol * value or abs(value) <= self.near_zero * size**2:
                return x, count
            curvature = np.maximum(diagonal + (diagonal[i] - 2.0 * g[i]), EPS**2)
            gain = np.where(drop > 4.0 * EPS * size * (norms + norms[i]), drop * drop, 0.0) / curvature
            j = int(gain.argmax())
            if gain[j] <= 0.0:  # only rounding is left
                return x, count
            down, up = x[j] - self.low[j], self.high[i] - x[i]
            step = min(drop[j] / curvature[j], down, up)
            x[j] = self.low[j] if step == down else x[j] - step
            x[i] = self.high[i] if step == up else x[i] + step
            gradient += step * (g[i] - g[j])
            value += step * (step * curvature[j] - 2.0 * drop[j])
            size += step * (norms[i] - norms[j])
            full[i], full[j] = (np.inf if step == up else 0.0), 0.0
            movable[i], movable[j] = 1.0, float(step < down)
        return x, most

    def active_set(self, x: Floats) -> Floats:
        """The minimum by an active-set method from x, or the point after SOLVES / k^3 steps (at least 1, at most 1000).

        Nocedal & Wright, Numerical Optimization, Alg. 16.3, with bounds. k: the number of free weights at x. A weight
        that reaches a bound on the way to the minimum over the free weights is fixed there. At this minimum, the fixed
        weight with the most violated multiplier is freed.
        """
        x, free, scale = x.copy(), (x > self.low) & (x < self.high), np.where(self.norms > 0, self.norms, 1.0)
        for _ in range(int(np.clip(SOLVES // max(int(free.sum()), 1) ** 3, 1, 1000))):
            if free.sum() > 1:
                unit = 1.0 / scale[free]  # unknowns lambda_i |m_i|, as above
                system = self.g[np.ix_(free, free)] * unit[:, None] * unit
                delta = np.zeros(len(x))
                delta[free] = unit * _correction(system, (self.g[free] @ x) * unit, unit)
                room = np.where(delta < 0, self.low - x, self.high - x)
                with np.errstate(over="ignore"):
                    fraction = np.divide(room, delta, out=np.full(len(x), np.inf), where=delta != 0)
                blocker = int(fraction.argmin())
                if fraction[blocker] < 1.0:
                    x = np.clip(x + fraction[blocker] * delta, self.low, self.high)
                    x[blocker] = self.low[blocker] if delta[blocker] < 0 else self.high[blocker]
                    free[blocker] = False
                    continue
                x = np.clip(x + delta, self.low, self.high)
            gradient = self.g @ x
            i = int(np.where(x < self.high, gradient, np.inf).argmin())
            j = int(np.where(x > self.low, gradient, -np.inf).argmax())
            noise = 4.0 * EPS * float(self.norms @ x) * (self.norms[i] + self.norms[j])
            if gradient[j] - gradient[i] <= max(self.tol * float(x @ gradient), noise):
                break
            level = gradient[free].mean() if free.any() else 0.5 * (gradient[i] + gradient[j])
            entering = i if level - gradient[i] >= gradient[j] - level else j
            if free[entering]:  # the system cannot be solved more accurately
                break
            free[[i, j] if not free.any() else entering] = True
        return x


def _correction(system: Floats, slope: Floats, unit: Floats) -> Floats:
    """The step delta [k] with system delta + slope = nu unit for some number nu, and unit^T delta = 0.

    It leads to the minimum of a quadratic function with this matrix [k, k] and half gradient [k] under a linear
    constraint. If the matrix is singular (dependent vectors, or a hull that contains 0), delta is the shortest one.
    """
    k, u = len(unit), unit / np.linalg.norm(unit)
    if (solve := _solver(system)) is not None:
        along, down = solve(np.stack([u, slope], axis=1)).T
        delta = (u @ down) / (u @ along) * along - down
    else:
        import scipy.linalg

        border = np.block([[system, u[:, None]], [u, np.zeros(1)]])
        target = np.append(-slope, 0.0)
        delta = scipy.linalg.lstsq(border, target, cond=k * EPS, lapack_driver="gelsy")[0][:k]
    balanced: Floats = delta - (u @ delta) * u  # rounding must not change the sum
    return balanced


def _solver(system: Floats) -> Callable[[Floats], Floats] | None:
    """A Cholesky solver of equations with this matrix of unit diagonal; None if it is singular up to rounding error."""
    import scipy.linalg

    try:
        factor = scipy.linalg.cho_factor(system, check_finite=False)
    except np.linalg.LinAlgError:
        return None
    regular = factor[0].diagonal().min() ** 2 > 16 * len(system) * EPS
    return partial(scipy.linalg.cho_solve, factor, check_finite=False) if regular else None
