"""Exact first and second moments of SG-FOCUS on one-dimensional quadratics, for any number of clients.

f_i(x) = a_i x^2/2 - b_i x, gradients with additive noise of variance sigma^2, independent participation with
probabilities p_i. A round maps (1, x, h_1, ..., h_N), with the stored gradients h_i (0 at first), linearly to

    h_i' = alpha_i x + beta_i h_i + gamma_i + noise for a client in the cohort, h_i otherwise;  x' = x - eta sum_i h_i'

so that the moments of the state after the round are linear in those before it, without a draw.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Array = np.ndarray


def last_gradient(a: Array, b: Array, steps: int, eta: float) -> tuple[Array, Array, Array, Array]:
    """(alpha, beta, gamma, sum of squared noise coefficients) of the last of `steps` local gradients, [N] each."""

    def run(x: Array, h: Array, affine: float, noise: int | None) -> Array:
        y, previous = np.zeros_like(a), h
        for t in range(steps):
            g = a * x - affine * b + (t == noise)
            y, previous = y + g - previous, g
            x = x - eta * y
        return g

    one, zero = np.ones_like(a), np.zeros_like(a)
    spread = sum(run(zero, zero, 0.0, t) ** 2 for t in range(steps))
    return run(one, zero, 0.0, None), run(zero, one, 0.0, None), run(zero, zero, 1.0, None), spread


def focus_moments(
    a: Array, b: Array, p: Array, steps: int, eta: float, sigma: float, x0: float
) -> Iterator[tuple[float, float]]:
    """(E x, E x^2) of the server model before round 0, 1, 2, ..."""
    n = len(a)
    alpha, beta, gamma, spread = last_gradient(a, b, steps, eta)
    taking = np.zeros((n, n + 2))
    taking[:, 0], taking[:, 1], taking[np.arange(n), np.arange(2, n + 2)] = gamma, alpha, beta
    staying = np.eye(n + 2)[2:]
    mean = np.vstack([np.eye(n + 2)[:2], p[:, None] * taking + (1 - p[:, None]) * staying])
    push = np.eye(n + 2)
    push[1, 2:] = -eta
    state = np.array([1.0, x0, *np.zeros(n)])
    v, diagonal = np.outer(state, state), np.arange(2, n + 2)
    while True:
        yield v[0, 1], v[1, 1]
        after = mean @ v @ mean.T
        squares = [np.einsum("ij,jk,ik->i", rows, v, rows) for rows in (taking, staying)]
        after[diagonal, diagonal] = p * (squares[0] + sigma**2 * spread) + (1 - p) * squares[1]
        v = push @ after @ push.T
