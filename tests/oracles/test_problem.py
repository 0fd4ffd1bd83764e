"""The gradients of the problems against slopes of their losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.oracles import (
    Problem,
    random_logistic,
    random_quadratics,
)
from tests.oracles.cases import D, N, start


@pytest.mark.parametrize("problem", [random_quadratics(0, N, D), random_logistic(0, N, l2=0.1)])
def test_gradients_are_the_slopes_of_the_losses(problem: Problem):
    x, step = start(0, problem.dim), 1e-6
    ways = step * np.eye(problem.dim)
    slopes = [(problem.loss(1, x + e) - problem.loss(1, x - e)) / (2 * step) for e in ways]
    np.testing.assert_allclose(problem.full_gradient(1, x), slopes, atol=1e-8)
    slopes = [(problem.global_loss(x + e) - problem.global_loss(x - e)) / (2 * step) for e in ways]
    np.testing.assert_allclose(problem.global_gradient(x), slopes, atol=1e-8)
    assert problem.weights.sum() == pytest.approx(1)


def test_logistic_batches_average_to_the_full_gradient():
    problem = random_logistic(1, 3)
    x, rows = start(1, problem.dim), range(int(problem.sizes[2]))
    mean = np.mean([problem.row_gradient(2, x, [row]) for row in rows], axis=0)
    np.testing.assert_allclose(mean, problem.full_gradient(2, x), atol=1e-14)
    picked = replace(problem, batches=lambda i, r, t: [i + r, t])
    np.testing.assert_allclose(picked.gradient(2, x, 1, 4), problem.row_gradient(2, x, [3, 4]))
