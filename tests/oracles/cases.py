"""Common parts of the tests of the oracles: sizes, starts, rounds, and the comparison of two histories."""

from __future__ import annotations

import numpy as np

from tests.oracles import Array, History, full_rounds, random_rounds

N, D = 5, 7
RANDOM = random_rounds(11, 12, N)
REPEATED = random_rounds(12, 12, N, with_replacement=True)
FULL = full_rounds(12, N, steps=4)


def start(seed: int, dim: int = D) -> Array:
    """x_0 [dim]."""
    return np.random.default_rng(1000 + seed).standard_normal(dim)


def system(seed: int) -> tuple[Array, Array, Array]:
    """Weights w, failure probabilities q and lengths |a_i|_1, [N] each."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(N)), rng.uniform(0, 0.5, N), rng.integers(1, 40, N).astype(float)


def close(ours: History, theirs: History, *, tol: float = 1e-12) -> None:
    """Asserts that the keys of both histories agree after every round."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        shared = a.keys() & b.keys()
        assert "x" in shared
        for key in shared:
            np.testing.assert_allclose(a[key], b[key], rtol=tol, atol=tol, err_msg=key)
