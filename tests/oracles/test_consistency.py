"""Fixed points ([3]) against closed forms and against iterated rounds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import (
    Array,
    Local,
    Round,
    biased_fixed_point,
    distances,
    expected_fixed_point,
    local_model,
    random_quadratics,
)
from tests.oracles.cases import D, N, start, system


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_the_expected_round_of_fedavg_stops_at_the_biased_fixed_point(mu: float):
    """E[x_{r+1}] = x - sum p (1-q) U_i, iterated until it stands; [3] eq. 36."""
    problem, (_, q, _) = random_quadratics(22, N, D), system(22)
    steps = np.array([1, 4, 9, 2, 6])
    r = Round(0, list(range(N)), [1] * N, [True] * N, steps.tolist(), 0.05)
    x = start(22)
    for _ in range(600):

        def proximal(g: Array, z: Array, x: Array = x) -> Array:
            return g + mu * (z - x)

        models = [local_model(problem, i, x, r, Local(), proximal) for i in range(N)]
        x = x - sum(problem.weights[i] * (1 - q[i]) * (x - models[i]) for i in range(N))
    np.testing.assert_allclose(expected_fixed_point(problem, q, steps, 0.05, mu=mu), x, atol=1e-10)


def test_the_fixed_point_on_distances_tends_to_the_omega_average():
    centres, (_, q, _) = np.random.default_rng(1).standard_normal((N, D)), system(23)
    steps = np.array([1, 4, 9, 2, 6])
    limit = biased_fixed_point(centres, q, steps.astype(float))
    finite = expected_fixed_point(distances(centres), q, steps, 1e-6)
    np.testing.assert_allclose(finite, limit, atol=1e-4)
    share = (1 - q) * (1 - 0.9**steps)  # [3] App. C, the last but one equation
    np.testing.assert_allclose(
        expected_fixed_point(distances(centres), q, steps, 0.1), share @ centres / share.sum(), rtol=1e-10
    )
