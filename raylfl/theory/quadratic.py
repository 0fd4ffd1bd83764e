"""Quadratic problems f_i(x) = x^T H_i x / 2 - b_i^T x + c_i in float64, and the constants that theorems need.

H: the Hessian of F = sum_i w_i f_i; x*: the minimiser of F. [1] FOCUS, [2] SFL, [3] FedACS: see `raylfl.theory`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raylfl.core.arrays import Floats

ROUNDING = 1e-10  # relative size up to which eigenvalues are rounding errors of 0


@dataclass(frozen=True)
class QuadraticProblem:
    """The problem F = sum_i w_i f_i with f_i(x) = x^T H_i x / 2 - b_i^T x + c_i.

    hessians: H_i [N, d, d], symmetric. linear: b_i [N, d]. constant: c_i [N]. weights: w_i [N], sum 1.
    """

    hessians: Floats
    linear: Floats
    constant: Floats
    weights: Floats

    @property
    def count(self) -> int:
        """The number of clients N."""
        return len(self.linear)

    @property
    def dim(self) -> int:
        """The number of parameters d."""
        return int(self.linear.shape[1])

    def gradients(self, x: Floats) -> Floats:
        """The gradients grad f_i(x) = H_i x - b_i of all clients, [N, d]."""
        return np.asarray(self.hessians @ x - self.linear)

    def value(self, x: Floats) -> float:
        """The value F(x) of the global objective."""
        values = 0.5 * np.einsum("j,ijk,k->i", x, self.hessians, x) - self.linear @ x + self.constant
        return float(self.weights @ values)

    def weighted(self, weights: Floats) -> "QuadraticProblem":
        """The problem with the same f_i and other weights [N], such as the surrogate objective's."""
        return QuadraticProblem(self.hessians, self.linear, self.constant, weights)

    @cached_property
    def hessian(self) -> Floats:
        """The Hessian H = sum_i w_i H_i of F, [d, d]."""
        return np.asarray(np.einsum("i,ijk->jk", self.weights, self.hessians))

    @cached_property
    def optimum(self) -> Floats:
        """The minimiser x* [d] of F; if F has several, the minimiser of least norm."""
        b = self.weights @ self.linear
        return np.asarray(np.linalg.lstsq(self.hessian, b, rcond=None)[0])

    @cached_property
    def smoothness(self) -> Floats:
        """The smoothness L_i of every f_i, the largest absolute eigenvalue of its Hessian, [N]."""
        return np.asarray(np.abs(np.linalg.eigvalsh(self.hessians)).max(axis=1))

    @cached_property
    def convexity(self) -> Floats:
        """The strong convexity mu_i of every f_i, the smallest (possibly negative) eigenvalue of its Hessian, [N]."""
        return _smallest(self.hessians)

    @property
    def global_convexity(self) -> float:
        """The smallest eigenvalue of the Hessian of F: the strong convexity mu and PL constant (FOCUS: beta) of F."""
        return float(_smallest(self.hessian))

    @property
    def zeta_star(self) -> float:
        """The heterogeneity sqrt(sum_i w_i |grad f_i(x*)|^2) at the minimiser x* of F (SFL, Assumption 3b)."""
        return float(np.sqrt(self.weights @ np.square(self.gradients(self.optimum)).sum(axis=1)))

    def dissimilarity(self) -> tuple[float, float]:
        """Constants (beta, zeta) with sum_i w_i |grad f_i - grad F|^2 <= beta^2 |grad F|^2 + zeta^2.

        This is Assumption 3a of SFL, for all parameters x. Assumption 3 of FedACS then holds with sqrt(beta^2 + 1) for
        its beta, and kappa = zeta.

        beta^2 is twice the infimum of the values for which a zeta exists, and zeta is the least for this beta. Both are
        inf if the Hessian H of F is singular and the H_i differ.

        With G_i = H_i - H, g_i = grad f_i(x*), A = sum_i w_i G_i^2, h = sum_i w_i G_i g_i and a positive definite P =
        beta^2 H^2 - A, the least zeta^2 is h^T P^-1 h + sum_i w_i |g_i|^2.
        """
        away = self.hessians - self.hessian
        at_optimum = self.gradients(self.optimum)
        a = np.einsum("i,ijk,ikl->jl", self.weights, away, away)
        h = np.einsum("i,ijk,ik->j", self.weights, away, at_optimum)
        base = float(self.weights @ np.square(at_optimum).sum(axis=1))
        if np.abs(a).max() <= 1e-14 * np.square(self.hessians).max():
            return 0.0, float(np.sqrt(base))
        eigenvalues, vectors = np.linalg.eigh(self.hessian)
        if eigenvalues[0] <= ROUNDING * abs(eigenvalues[-1]):
            return float("inf"), float("inf")
        inverse = (vectors / eigenvalues) @ vectors.T
        beta2 = 2 * float(np.linalg.eigvalsh(inverse @ a @ inverse)[-1])
        p = beta2 * self.hessian @ self.hessian - a
        return float(np.sqrt(beta2)), float(np.sqrt(h @ np.linalg.solve(p, h) + base))

    def reach(self, start: Floats) -> float:
        """The radius r of a ball around x* that no model of FedAvg leaves, for eta <= 1/L and full gradients.

        A local step moves x to within (1 - eta mu_i) |x - x*| + eta |grad f_i(x*)| of x*, and the server averages. r is
        therefore the larger of |x0 - x*| and max_i |grad f_i(x*)| / mu_i. If an f_i is not strongly convex, r is |x0 -
        x*| only, and holds as long as the models stay within it. start: x0 [d].
        """
        radius = float(np.linalg.norm(start - self.optimum))
        if self.convexity.min() <= 0:
            return radius
        slopes = np.linalg.norm(self.gradients(self.optimum), axis=1)
        return max(radius, float((slopes / self.convexity).max()))

    @property
    def hessian_deviation(self) -> float:
        """The bound delta = max_i |H_i - H| of Hessian heterogeneity (SFL, sec. 4.1), in the spectral norm."""
        return float(np.linalg.norm(self.hessians - self.hessian, ord=2, axis=(1, 2)).max())

    def deviation(self, radius: float) -> Floats:
        """For each client i an upper bound of |grad f_i(x) - grad F(x)| over all x with |x - x*| <= radius, [N].

        The bound is |H_i - H| radius + |grad f_i(x*)|. H: the Hessian of F; x*: its minimiser. The bounds are the D_i
        of FedACS, Assumption 4; the largest is sigma_G of FOCUS, Assumption 5. If all H_i are equal, the bounds do
        not depend on the radius.
        """
        spread = np.linalg.norm(self.hessians - self.hessian, ord=2, axis=(1, 2))
        return np.asarray(spread * radius + np.linalg.norm(self.gradients(self.optimum), axis=1))

    def gradient_bound(self, radius: float) -> float:
        """The bound max_i (|H_i| radius + |grad f_i(x*)|) of all |grad f_i| for |x - x*| <= radius.

        It is G of FedACS, Assumption 7. x*: the minimiser of F.
        """
        return float((self.smoothness * radius + np.linalg.norm(self.gradients(self.optimum), axis=1)).max())

    def sampling_bias(self, shares: Floats, radius: float) -> float:
        """The bound of |sum_i (s_i - w_i) grad f_i(x)| for |x - x*| <= radius (delta_q of FOCUS, eq. 37).

        shares: s_i [N], sum 1, the expected share of client i in the averaged update.
        """
        away = shares - self.weights
        matrix = np.einsum("i,ijk->jk", away, self.hessians)
        return float(np.linalg.norm(matrix, ord=2) * radius + np.linalg.norm(away @ self.gradients(self.optimum)))


def _smallest(matrices: Floats) -> Floats:
    """The smallest eigenvalues of symmetric matrices [..., d, d], without rounding errors of 0."""
    eigenvalues = np.linalg.eigvalsh(matrices)
    least, largest = eigenvalues[..., 0], np.abs(eigenvalues).max(axis=-1)
    return np.asarray(np.where(np.abs(least) <= ROUNDING * largest, 0.0, least))
