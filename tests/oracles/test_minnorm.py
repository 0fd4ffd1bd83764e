"""Shortest combinations against exhaustion and SLSQP."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.oracles import (
    Array,
    box_min_norm,
    min_norm_point,
    min_norm_weights,
)


def best_over_supports(vectors: Array) -> Array:
    """The shortest feasible affine minimiser over all supports: the minimum, by exhaustion."""
    best = np.eye(len(vectors))[0]
    for size in range(1, len(vectors) + 1):
        for support in map(list, itertools.combinations(range(len(vectors)), size)):
            v = vectors[support]
            rest = np.linalg.lstsq((v[1:] - v[0]).T, -v[0], rcond=None)[0] if size > 1 else np.zeros(0)
            lam = np.zeros(len(vectors))
            lam[support] = np.concatenate([[1 - rest.sum()], rest])
            if lam.min() >= -1e-12 and np.linalg.norm(lam @ vectors) < np.linalg.norm(best @ vectors):
                best = lam
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_min_norm_point_is_the_best_over_all_supports(seed: int):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 8)), int(rng.integers(1, 10))
    vectors = rng.standard_normal((n, d)) + rng.uniform(0, 2)
    expected = best_over_supports(vectors) @ vectors
    lam = min_norm_weights(vectors)
    assert lam.min() >= 0
    assert lam.sum() == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(lam @ vectors, expected, atol=1e-12)
    np.testing.assert_allclose(min_norm_point(vectors @ vectors.T) @ vectors, expected, atol=1e-7)


@pytest.mark.parametrize("n", [3, 12, 30])
@pytest.mark.parametrize("eps", [0.0, 0.02, 0.1, 1.0])
def test_the_box_is_respected_and_nothing_in_it_is_shorter(n: int, eps: float):
    """SLSQP finds nothing shorter, and g . (mu - lambda) >= 0 (first order) for random feasible mu."""
    rng = np.random.default_rng(n)
    vectors, lambda0 = rng.standard_normal((n, 40)) + 0.3, rng.dirichlet(np.ones(n))
    gram = vectors @ vectors.T
    lam = box_min_norm(gram, lambda0, eps)
    assert abs(lam.sum() - 1) < 1e-12
    assert lam.min() >= 0
    assert np.abs(lam - lambda0).max() <= eps + 1e-12
    bounds = [(max(0, v - eps), min(1, v + eps)) for v in lambda0]
    slsqp = minimize(
        lambda z: z @ gram @ z,
        lambda0,
        jac=lambda z: 2 * gram @ z,
        bounds=bounds,
        constraints={"type": "eq", "fun": lambda z: z.sum() - 1, "jac": lambda z: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert lam @ gram @ lam <= slsqp.fun * (1 + 1e-10)
    np.testing.assert_allclose(lam, slsqp.x, atol=1e-5)
