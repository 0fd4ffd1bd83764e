"""Omega and chi2, against the papers' formulas and a run that converges to it."""

import numpy as np
import pytest

from raylfl.algorithms.fedavg import FedAvg
from raylfl.diagnostics.surrogate import chi2, surrogate_weights
from tests import oracles
from tests.algorithms.replay import models


@pytest.mark.parametrize("seed", range(5))
def test_omega_and_chi2_are_those_of_equation_6_and_theorem_2(seed):
    rng = np.random.default_rng(seed)
    w, p = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    q, a = rng.uniform(0, 0.9, 6), rng.integers(1, 40, 6).astype(float)
    omega = surrogate_weights(p * (1 - q), a)
    np.testing.assert_allclose(omega, oracles.surrogate_weights(p, q, a), rtol=1e-13)
    assert chi2(w, omega) == pytest.approx(oracles.chi2(w, omega), rel=1e-13)


def test_chi2_has_known_values_and_is_infinite_for_a_client_that_is_never_received():
    assert chi2(np.array([0.3, 0.7]), np.array([0.3, 0.7])) == 0.0
    assert chi2(np.array([0.5, 0.5]), np.array([0.8, 0.2])) == pytest.approx(0.09 / 0.8 + 0.09 / 0.2)
    omega = surrogate_weights(np.array([1.0, 0.0]), np.array([3.0, np.nan]))
    np.testing.assert_array_equal(omega, [1.0, 0.0])
    assert chi2(np.array([0.5, 0.5]), omega) == np.inf
    assert chi2(np.array([1.0, 0.0]), omega) == 0.0
    np.testing.assert_array_equal(surrogate_weights(np.zeros(3), np.ones(3)), np.zeros(3))


def test_fedavg_ends_where_the_surrogate_predicts():
    """[3] Example 2 without chance: full participation, unequal K, small eta, f_i = |x - E_i|^2 / 2."""
    centres = np.random.default_rng(0).normal(size=(4, 3))
    problem, steps, eta = oracles.distances(centres), np.array([1, 2, 4, 8]), 1e-4
    rounds = oracles.full_rounds(150, 4, lr=20 * eta)
    for r in rounds:
        r.steps = r.steps_all = steps.tolist()
    start = centres.mean(axis=0)  # the true optimum
    end = models(FedAvg(gamma=8.0), problem, rounds, start)[-1]
    omega = surrogate_weights(np.full(4, 0.25), steps.astype(float))
    predicted = omega @ centres
    np.testing.assert_allclose(predicted, oracles.biased_fixed_point(centres, np.zeros(4), steps), rtol=1e-12)
    bias = np.linalg.norm(predicted - start)
    assert np.linalg.norm(end - predicted) < 0.02 * bias  # O(eta K) = 0.016
