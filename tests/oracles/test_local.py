"""The local solver against closed forms, and the problems' gradients against slopes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.oracles import (
    Array,
    Local,
    Problem,
    a_norms,
    a_vector,
    full_rounds,
    local_model,
    random_logistic,
    random_quadratics,
    simulate,
)
from tests.oracles.cases import D, N, start


def test_a_vector_has_the_closed_forms_of_the_table():
    steps, rho, prox = 6, 0.7, 0.2
    t = np.arange(steps)
    np.testing.assert_allclose(a_vector(steps), np.ones(steps))
    np.testing.assert_allclose(a_vector(steps, momentum=rho), (1 - rho ** (steps - t)) / (1 - rho), rtol=1e-14)
    np.testing.assert_allclose(a_vector(steps, prox=prox), (1 - prox) ** (steps - 1 - t), rtol=1e-14)
    np.testing.assert_allclose(a_vector(steps, step_schedule=lambda s: 0.9**s), 0.9**t, rtol=1e-14)


@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.5), (0.6, 0.5)])
def test_an_update_is_eta_times_its_gradients_weighed_by_a(rho: float, mu: float):
    """U = eta G a, the definition of a, with the gradients met on the way."""
    problem, x = random_quadratics(0, N, D), start(0)
    (r,) = full_rounds(1, N, steps=6, lr=0.1)
    local, met = Local(momentum=rho, schedule=lambda t: 0.9**t), []

    def record(g: Array, z: Array) -> Array:
        met.append(g)
        return g + mu * (z - x)

    update = x - local_model(problem, 2, x, r, local, record)
    weights = a_vector(6, rho, r.lr * mu, local.schedule)
    np.testing.assert_allclose(update, r.lr * weights @ np.array(met), rtol=1e-13)


def test_a_norms_follow_the_local_solver():
    (r,) = full_rounds(1, 2, steps=3, lr=0.1)
    np.testing.assert_allclose(a_norms(r, 2, Local(momentum=0.5)), 1 + 1.5 + 1.75)
    np.testing.assert_allclose(a_norms(r, 2, Local(), mu=1.0), 1 + 0.9 + 0.81)


def test_clipping_comes_before_weight_decay():
    problem, x = random_quadratics(1, N, D), start(1)
    (r,) = full_rounds(1, N, lr=0.1)
    g = problem.full_gradient(3, x)
    expected = x - 0.1 * (g * 0.5 / (np.linalg.norm(g) + 1e-6) + 0.3 * x)
    assert np.linalg.norm(g) > 0.5
    ours = local_model(problem, 3, x, r, Local(clip_norm=0.5, weight_decay=0.3))
    np.testing.assert_allclose(ours, expected, rtol=1e-13)


def test_the_momentum_buffer_starts_at_zero_every_round():
    """Heavy ball over K = 2 steps, twice, is the two-step closed form applied twice."""
    problem, x = random_quadratics(2, 1, D), start(2, D)
    h, b, eta, rho = problem.hessians[0], problem.linear[0], 0.1, 0.5
    z = x
    for _ in range(2):
        g0 = h @ z - b
        g1 = h @ (z - eta * g0) - b
        z = z - eta * g0 - eta * (rho * g0 + g1)
    run = simulate("fedavg", problem, full_rounds(2, 1, steps=2, lr=eta), x, Local(momentum=rho))
    np.testing.assert_allclose(run[-1]["x"], z, rtol=1e-13)


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
