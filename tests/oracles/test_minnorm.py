"""Shortest combinations against exhaustion and SLSQP, and FedMGDA and FedAWARE on top of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.oracles import (
    Array,
    Local,
    Round,
    box_min_norm,
    full_rounds,
    gradient_diversity,
    local_model,
    min_norm_point,
    min_norm_weights,
    random_quadratics,
    random_rounds,
    simulate,
)
from tests.oracles.cases import RANDOM, D, N, close, start


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


def test_orthogonal_vectors_weigh_by_their_inverse_squared_lengths():
    lengths = np.array([1.0, 2.0, 0.5, 4.0])
    expected = lengths**-2 / np.sum(lengths**-2)
    np.testing.assert_allclose(min_norm_point(np.diag(lengths**2)), expected, rtol=1e-13)


@pytest.mark.parametrize("seed", range(10))
def test_two_vectors_have_the_closed_form(seed: int):
    a, b = np.random.default_rng(seed).standard_normal((2, 3)) + 0.5
    share = np.clip(b @ (b - a) / ((a - b) @ (a - b)), 0, 1)
    gram = np.array([[a @ a, a @ b], [a @ b, b @ b]])
    np.testing.assert_allclose(min_norm_point(gram), [share, 1 - share], atol=1e-12)


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


def test_fedmgda_with_no_room_averages_the_directions():
    problem, x = random_quadratics(25, N, D), start(25)
    r = Round(0, [3, 0, 1], [1, 1, 1], [True, True, False], [2, 2, 2], 0.05)
    units = [u / np.linalg.norm(u) for u in (x - local_model(problem, i, x, r, Local()) for i in (3, 0))]
    share = problem.weights[[3, 0]] / problem.weights[[3, 0]].sum()
    state = simulate("fedmgda", problem, [r], x, eps=0.0, gamma=0.1)[0]
    np.testing.assert_allclose(state["x"], x - 0.1 * share @ np.array(units), rtol=1e-13)


def test_fedaware_moves_along_the_shortest_combination_of_its_momenta():
    """First participation takes U_i, later alpha m + (1 - alpha) U; only clients received so far weigh."""
    problem, x = random_quadratics(26, N, D), start(26)
    run = simulate("fedaware", problem, RANDOM, x, alpha=0.3, gamma=0.8)
    before, momentum, seen = x, np.zeros((N, D)), np.zeros(N, dtype=bool)
    for r, state in zip(RANDOM, run, strict=True):
        for i in r.arrived:
            u = before - local_model(problem, i, before, r, Local())
            momentum[i] = 0.3 * momentum[i] + 0.7 * u if seen[i] else u
            seen[i] = True
        np.testing.assert_allclose(state["m_i"], momentum, atol=1e-13)
        if r.arrived:
            step = best_over_supports(momentum[seen]) @ momentum[seen]
            np.testing.assert_allclose(state["x"], before - 0.8 * step, atol=1e-11)
            assert not state["lambda_i"][~seen].any()
        before = state["x"]


def test_fedaware_warms_up_as_fedavg_until_the_round_that_completes_the_clients():
    problem, x = random_quadratics(27, N, D), start(27)
    rounds = random_rounds(27, 12, N, size=2, include_empty=False, lossy=False)
    run = simulate("fedaware", problem, rounds, x, warmup="fedavg", aggregate="weighted")
    complete = next(k for k, state in enumerate(run) if state["seen_i"].all())
    assert 1 < complete < 11
    close(run[:complete], simulate("fedavg", problem, rounds[:complete], x, aggregate="weighted"))
    assert not any(state["lambda_i"].any() for state in run[:complete])
    assert all(state["lambda_i"].sum() == pytest.approx(1) for state in run[complete:])


def test_fedaware_normalized_weighs_the_new_update_by_alpha_and_sums_unit_vectors():
    problem, x, rounds = random_quadratics(28, N, D), start(28), full_rounds(2, N, steps=2)
    first, second = simulate("fedaware", problem, rounds, x, normalize=True, alpha=0.3)
    units = first["m_i"] / np.linalg.norm(first["m_i"], axis=1, keepdims=True)
    np.testing.assert_allclose(first["x"], x - best_over_supports(units) @ units, atol=1e-12)
    fresh = [first["x"] - local_model(problem, i, first["x"], rounds[1], Local()) for i in range(N)]
    np.testing.assert_allclose(second["m_i"], 0.7 * first["m_i"] + 0.3 * np.array(fresh), atol=1e-13)


def test_gradient_diversity_is_one_for_equal_updates_and_grows_as_they_cancel():
    w = np.array([0.25, 0.25, 0.5])
    assert gradient_diversity(np.tile(start(29), (3, 1)), w) == pytest.approx(1)
    assert gradient_diversity(np.array([[1.0, 0], [0, 1]]), np.array([2.0, 2.0])) == pytest.approx(np.sqrt(2))
