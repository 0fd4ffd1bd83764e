"""SFL, pooled training and local training against closed forms."""

from __future__ import annotations

import numpy as np

from tests.oracles import Round, distances, full_rounds, random_quadratics, simulate
from tests.oracles.cases import D, N, start


def test_sfl_runs_the_clients_one_after_the_other():
    """On |x - E_i|^2/2 a client's K steps are x <- E_i + (1-eta)^K (x - E_i)."""
    problem, x = distances(np.random.default_rng(0).standard_normal((3, 2))), start(18, 2)
    r = Round(0, [2, 0, 1], [1, 1, 1], [True, False, True], [2, 5, 3], 0.1)
    after = problem.linear[2] + 0.9**2 * (x - problem.linear[2])
    after = problem.linear[1] + 0.9**3 * (after - problem.linear[1])
    np.testing.assert_allclose(simulate("sfl", problem, [r], x)[0]["x"], after, rtol=1e-14)


def test_centralized_is_gradient_descent_on_f_and_local_only_finds_every_own_optimum():
    problem, x = random_quadratics(19, N, D), start(19)
    z = x
    for _ in range(3):
        z = z - 0.05 * problem.global_gradient(z)
    np.testing.assert_allclose(simulate("centralized", problem, full_rounds(1, N, steps=3), x)[0]["x"], z, rtol=1e-12)
    end = simulate("local_only", problem, full_rounds(400, N, steps=3, lr=0.1), x)[-1]
    own = np.array([np.linalg.solve(h, b) for h, b in zip(problem.hessians, problem.linear, strict=True)])
    np.testing.assert_allclose(end["x_i"], own, atol=1e-10)
    np.testing.assert_allclose(end["x"], problem.weights @ own, atol=1e-10)
