"""Quadratic problems f_i(x) = x^T H_i x / 2 - b_i^T x + c_i in float64, and the constants of the papers for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raylfl.core.population import Floats


@dataclass(frozen=True)
class QuadraticProblem:
    """The problem F = sum_i w_i f_i with quadratic f_i.

    hessians: H [N, d, d], symmetric; linear: b [N, d]; constant: c [N]; weights: w [N], sum 1.
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
        """The dimension d."""
        return int(self.linear.shape[1])

    def gradients(self, x: Floats) -> Floats:
        """The gradients grad f_i(x) = H_i x - b_i, [N, d]."""
        return np.asarray(self.hessians @ x - self.linear)

    def value(self, x: Floats) -> float:
        """The value F(x)."""
        values = 0.5 * np.einsum("j,ijk,k->i", x, self.hessians, x) - self.linear @ x + self.constant
        return float(self.weights @ values)

    def weighted(self, weights: Floats) -> QuadraticProblem:
        """The same f_i under other weights, such as the surrogate objective's Omega."""
        return QuadraticProblem(self.hessians, self.linear, self.constant, weights)

    @cached_property
    def hessian(self) -> Floats:
        """The Hessian of F, sum_i w_i H_i [d, d]."""
        return np.asarray(np.einsum("i,ijk->jk", self.weights, self.hessians))

    @cached_property
    def optimum(self) -> Floats:
        """The minimiser x* of F, [d]; the minimiser of least norm if F is not strictly convex."""
        b = self.weights @ self.linear
        return np.asarray(np.linalg.lstsq(self.hessian, b, rcond=None)[0])

    @cached_property
    def smoothness(self) -> Floats:
        """The smoothness L_i of f_i, [N]: the largest absolute eigenvalue of H_i."""
        return np.asarray(np.abs(np.linalg.eigvalsh(self.hessians)).max(axis=1))

    @cached_property
    def convexity(self) -> Floats:
        """The convexity mu_i of f_i, [N]: the smallest eigenvalue of H_i; negative if f_i is not convex."""
        return np.asarray(np.linalg.eigvalsh(self.hessians).min(axis=1))

    @property
    def global_convexity(self) -> float:
        """The strong convexity mu of F, also its PL constant (beta in [1]): the smallest eigenvalue of its Hessian."""
        return float(np.linalg.eigvalsh(self.hessian)[0])

    @property
    def zeta_star(self) -> float:
        """The heterogeneity zeta_* at x* ([2], Assumption 3b): zeta_*^2 = sum_i w_i |grad f_i(x*)|^2."""
        return float(np.sqrt(self.weights @ np.square(self.gradients(self.optimum)).sum(axis=1)))

    def dissimilarity(self, beta2: float | None = None) -> tuple[float, float]:
        """The dissimilarity constants (beta, zeta) of [2], Assumption 3a.

        sum_i w_i |grad f_i - grad F|^2 <= beta^2 |grad F|^2 + zeta^2 for all x. With G_i = H_i - H, g_i = grad f_i(x*),
        A = sum w_i G_i^2 and h = sum w_i G_i g_i, the least zeta^2 for a beta^2 with P = beta^2 H^2 - A > 0 is
        h^T P^-1 h + sum w_i |g_i|^2. beta2: beta^2; default: twice its least possible value. [3] Assumption 3 holds
        with beta~^2 = beta^2 + 1 and kappa = zeta. Both are inf if H is singular and the H_i differ.
        """
        away = self.hessians - self.hessian
        at_optimum = self.gradients(self.optimum)
        a = np.einsum("i,ijk,ikl->jl", self.weights, away, away)
        h = np.einsum("i,ijk,ik->j", self.weights, away, at_optimum)
        base = float(self.weights @ np.square(at_optimum).sum(axis=1))
        if np.abs(a).max() <= 1e-14 * max(1.0, float(np.abs(self.hessian).max()) ** 2):
            return (0.0 if beta2 is None else float(np.sqrt(beta2))), float(np.sqrt(base))
        eigenvalues, vectors = np.linalg.eigh(self.hessian)
        if eigenvalues[0] <= 1e-12 * abs(eigenvalues[-1]):
            return float("inf"), float("inf")
        inverse = (vectors / eigenvalues) @ vectors.T
        least = float(np.linalg.eigvalsh(inverse @ a @ inverse)[-1])
        beta2 = 2 * least if beta2 is None else beta2
        if beta2 <= least:
            return float(np.sqrt(beta2)), float("inf")
        p = beta2 * self.hessian @ self.hessian - a
        return float(np.sqrt(beta2)), float(np.sqrt(h @ np.linalg.solve(p, h) + base))

    def deviation(self, radius: float) -> Floats:
        """The bounds D_i = |H_i - H| radius + |grad f_i(x*)| of |grad f_i - grad F| within |x - x*| <= radius, [N].

        [3], Assumption 4. Their maximum is sigma_G of [1], Assumption 5. They are independent of the radius if all H_i
        are equal.
        """
        spread = np.linalg.norm(self.hessians - self.hessian, ord=2, axis=(1, 2))
        return np.asarray(spread * radius + np.linalg.norm(self.gradients(self.optimum), axis=1))

    def gradient_bound(self, radius: float) -> float:
        """The bound G = max_i |H_i| radius + |grad f_i(x*)| of |grad f_i|, |x - x*| <= radius ([3], Assumption 7)."""
        return float((self.smoothness * radius + np.linalg.norm(self.gradients(self.optimum), axis=1)).max())

    def sampling_bias(self, shares: Floats, radius: float) -> float:
        """The bound delta_q of |sum_i (s_i - w_i) grad f_i(x)| within |x - x*| <= radius ([1], eq. 37).

        shares: expected shares of the clients in the average, [N], sum 1.
        """
        away = shares - self.weights
        matrix = np.einsum("i,ijk->jk", away, self.hessians)
        return float(np.linalg.norm(matrix, ord=2) * radius + np.linalg.norm(away @ self.gradients(self.optimum)))
