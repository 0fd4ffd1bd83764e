"""Common parts of the tests of the oracles: sizes, starts and conditions."""

from __future__ import annotations

import numpy as np

from tests.oracles import Array

N, D = 5, 7


def start(seed: int, dim: int = D) -> Array:
    """x_0 [dim]."""
    return np.random.default_rng(1000 + seed).standard_normal(dim)


def system(seed: int) -> tuple[Array, Array, Array]:
    """Weights w, failure probabilities q and lengths |a_i|_1, [N] each."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(N)), rng.uniform(0, 0.5, N), rng.integers(1, 40, N).astype(float)
