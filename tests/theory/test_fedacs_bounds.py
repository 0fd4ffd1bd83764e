"""FedACS's Theorems 1 and 3 against runs on random quadratics, drawn with replacement over lossy links."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.theory import fedacs
from tests.theory.problems import PROBLEMS, SHARES, local, noisy

SEEDS = st.integers(0, 10**6)


def mean_square(problem, weights, p, q, steps, size, eta, sigma, start, draw):
    """The mean of |sum_i w_i grad f_i(x_r)|^2 over rounds; weights, p, q, steps: of each round [R, N]."""
    x, squares, gradient = start, [], noisy(problem, sigma, draw)
    for w, chances, lost, work in zip(weights, p, q, steps, strict=True):
        squares.append(np.square(w @ problem.gradients(x)).sum())
        cohort = draw.choice(problem.count, size, p=chances)
        received = [i for i in cohort if draw.random() >= lost[i]]
        x = x + sum((local(gradient, i, x, int(work[i]), eta) - x for i in received), np.zeros_like(x)) / size
    return np.mean(squares)


@given(PROBLEMS, SEEDS, SHARES, st.sampled_from([0.0, 0.5]), st.booleans())
def test_runs_stay_below_theorem_1_of_fedacs(problem, seed, share, noise, from_optimum):
    draw, rounds, sigma = np.random.default_rng(seed), 30, noise * problem.smoothness.max()
    p = draw.dirichlet(np.ones(problem.count)) * 0.9 + 0.1 / problem.count
    q, steps = draw.random(problem.count) * 0.8, draw.integers(1, 6, problem.count).astype(float)
    omega = p * (1 - q) * steps / (p * (1 - q) * steps).sum()
    surrogate, L = problem.weighted(omega), problem.smoothness.max()
    beta, kappa = surrogate.dissimilarity()
    eta = share * fedacs.surrogate_step(L, steps.max(), np.sqrt(beta**2 + 1)).largest
    start = surrogate.optimum + (0 if from_optimum else 3) * draw.standard_normal(problem.dim)
    each = [np.tile(v, (rounds, 1)) for v in (omega, p, q, steps)]
    mean = np.mean([mean_square(surrogate, *each, 2, eta, sigma, start, draw) for _ in range(6)])
    gap = surrogate.value(start) - surrogate.value(surrogate.optimum)
    shares = np.tile(p * (1 - q), (rounds, 1))
    bound = fedacs.surrogate_bound(eta, shares, each[3], L=L, gap=gap, kappa=kappa, sigma=sigma)
    assert mean <= bound * (1 + 1e-9) + 1e-15 * L**2


@given(PROBLEMS, SEEDS, SHARES, st.sampled_from([0.0, 0.5]))
def test_fedacs_stays_below_theorem_3_in_a_system_that_changes(problem, seed, share, noise):
    """p_i ~ w_i / ((1 - q_i) |a_i|_1) makes the surrogate weights equal to the weights in F in every round (eq. 15)."""
    draw, shape, sigma = np.random.default_rng(seed), (30, problem.count), noise * problem.smoothness.max()
    q, steps = draw.random(shape) * 0.8, draw.integers(1, 6, shape).astype(float)
    p = problem.weights / ((1 - q) * steps)
    p /= p.sum(axis=1, keepdims=True)
    L, (beta, kappa) = problem.smoothness.max(), problem.dissimilarity()
    eta = share * fedacs.surrogate_step(L, steps.max(), np.sqrt(beta**2 + 1)).largest
    start = problem.optimum + 3 * draw.standard_normal(problem.dim)
    weights = np.tile(problem.weights, (shape[0], 1))
    mean = np.mean([mean_square(problem, weights, p, q, steps, 2, eta, sigma, start, draw) for _ in range(6)])
    gap = problem.value(start) - problem.value(problem.optimum)
    bound = fedacs.surrogate_bound(eta, p * (1 - q), steps, L=L, gap=gap, kappa=kappa, sigma=sigma)
    assert mean <= bound * (1 + 1e-9)


def test_in_a_constant_system_bound_and_step_size_are_those_of_theorem_1():
    shares, a_norm = np.tile([0.2, 0.4], (8, 1)), np.tile([3.0, 5.0], (8, 1))
    bound = fedacs.surrogate_bound(0.01, shares, a_norm, L=2.0, gap=1.5, kappa=0.7, sigma=0.3)
    u = 0.01 * 2 * 5
    c = (u**2 + 2 * u**3) / (1 - 2 * u**2) + u
    assert bound == pytest.approx(4 * 1.5 / (0.01 * 2.6 * 8) + 4 * c * 0.49 + 2 * 0.01 * 2 * 25 * 0.09 / (2.6 / 0.6))
    bound = fedacs.surrogate_step(3.0, 7.0, beta=1.5)
    assert 1.5**2 * fedacs.descent_error(bound.largest * 21) == pytest.approx(0.25)
    assert fedacs.descent_error(0.8) == float("inf")
