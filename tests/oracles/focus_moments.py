"""Exact first and second moments of SG-FOCUS on one-dimensional quadratics, for any number of clients.

f_i(x) = a_i x^2/2 - b_i x, gradients with additive noise of variance sigma^2, independent participation with
probabilities p_i. A round maps (1, x, h_1, ..., h_N), with the stored gradients h_i (0 at first), linearly to

    h_i' = alpha_i x + beta_i h_i + gamma_i + noise for a client in the cohort, h_i otherwise;  x' = x - eta sum_i h_i'

so that the moments of the state after the round are linear in those before it, without a draw.
"""

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


Matrices = tuple[Array, Array, Array, Array, Array]


def matrices(a: Array, b: Array, p: Array, steps: int, eta: float) -> Matrices:
    """(rows of a client that takes part, rows of one that does not, their mean, the server's step, noise factors)."""
    n = len(a)
    alpha, beta, gamma, spread = last_gradient(a, b, steps, eta)
    taking = np.zeros((n, n + 2))
    taking[:, 0], taking[:, 1], taking[np.arange(n), np.arange(2, n + 2)] = gamma, alpha, beta
    staying = np.eye(n + 2)[2:]
    mean = np.vstack([np.eye(n + 2)[:2], p[:, None] * taking + (1 - p[:, None]) * staying])
    push = np.eye(n + 2)
    push[1, 2:] = -eta
    return taking, staying, mean, push, spread


def after_round(v: Array, p: Array, sigma: float, parts: Matrices) -> Array:
    """The second moments of (1, x, h_1, ..., h_N) after a round, from those before it, [N+2, N+2]."""
    taking, staying, mean, push, spread = parts
    after, diagonal = mean @ v @ mean.T, np.arange(2, len(v))
    squares = [((rows @ v) * rows).sum(axis=1) for rows in (taking, staying)]
    after[diagonal, diagonal] = p * (squares[0] + sigma**2 * spread * v[0, 0]) + (1 - p) * squares[1]
    return push @ after @ push.T


def focus_moments(
    a: Array, b: Array, p: Array, steps: int, eta: float, sigma: float, x0: float
) -> Iterator[tuple[float, float]]:
    """(E x, E x^2) of the server model before round 0, 1, 2, ..."""
    parts = matrices(a, b, p, steps, eta)
    state = np.array([1.0, x0, *np.zeros(len(a))])
    v = np.outer(state, state)
    while True:
        yield v[0, 1], v[1, 1]
        v = after_round(v, p, sigma, parts)


def stationary(a: Array, b: Array, p: Array, steps: int, eta: float, sigma: float) -> float:
    """E x^2 after infinitely many rounds: the fixed point of the linear map of second moments."""
    parts, size = matrices(a, b, p, steps, eta), len(a) + 2
    basis = np.eye(size * size).reshape(-1, size, size)
    step = np.array([after_round(one, p, sigma, parts).ravel() for one in basis]).T
    constant, rest = step[1:, 0], step[1:, 1:]  # the moment of (1, 1) stays 1
    return float(np.linalg.solve(np.eye(len(rest)) - rest, constant)[size])
