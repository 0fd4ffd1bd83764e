"""Optimal sampling: its probabilities, fresh and stale, and its variance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.optimal_sampling import OptimalSampling
from raylfl.core.population import Population
from raylfl.diagnostics.surrogate import surrogate_weights
from raylfl.testing import recorded_round
from tests import oracles
from tests.algorithms.replay import beforehand, setting, states


def calm(weights: np.ndarray, available: np.ndarray | None = None):
    """Conditions over perfect links."""
    return beforehand(weights, np.zeros(len(weights)), np.ones(len(weights)), available)


@pytest.mark.parametrize("seed", range(3))
def test_stale_probabilities_come_from_the_last_norms_received(seed):
    problem, rounds, x0 = setting(seed, size=2)
    theirs = oracles.simulate("optimal_sampling", problem, rounds, x0, norms="stale")
    algorithm = OptimalSampling(norms="stale")
    for state, server in zip(theirs, states(algorithm, problem, rounds, x0), strict=True):
        p = algorithm.probabilities(server, calm(problem.weights))
        np.testing.assert_allclose(p, oracles.optimal_probabilities(problem.weights, state["norms_i"]), rtol=1e-9)


def test_round_0_samples_by_w_and_an_unknown_norm_is_the_mean_of_the_known():
    algorithm, population = OptimalSampling(norms="stale"), Population.of(np.array([1, 2, 3, 4]), "data_size")
    before = algorithm.init_server(torch.zeros(2), population)
    c = calm(population.weights)
    np.testing.assert_allclose(algorithm.probabilities(before, c), population.weights)
    r = recorded_round(0, [0, 2, 3], population, received=[True, True, False]).received_view
    server, _ = algorithm.server_step(before, {"update": torch.tensor([[3.0, 4.0], [0.0, 1.0]])}, r)
    assert float(before["norms"].sum()) == 0.0  # not changed in place
    scores = np.array([1, 2, 3, 4]) * np.array([5.0, 3.0, 1.0, 3.0])
    np.testing.assert_allclose(algorithm.probabilities(server, c), scores / scores.sum(), rtol=1e-6)


def test_a_norm_of_zero_does_not_exclude_a_client_for_ever():
    algorithm, population = OptimalSampling(norms="stale"), Population.of(np.ones(2))
    server = algorithm.init_server(torch.zeros(1), population)
    r = recorded_round(0, [0, 1], population).received_view
    server, _ = algorithm.server_step(server, {"update": torch.tensor([[0.0], [2.0]])}, r)
    np.testing.assert_allclose(algorithm.probabilities(server, calm(population.weights)), [0.5, 0.5])


def test_fresh_norms_are_computed_before_sampling_and_stale_ones_are_not():
    assert OptimalSampling().samples_by_norm
    assert not OptimalSampling(norms="stale").samples_by_norm
    assert not FedAvg().samples_by_norm
    assert OptimalSampling().probabilities({}, calm(np.full(2, 0.5))) is None
    with pytest.raises(NotImplementedError, match="FedAvg does not sample by norms"):
        FedAvg().norm_probabilities({}, calm(np.full(2, 0.5)), np.ones(2))


def test_fresh_probabilities_weigh_the_norms_of_those_available():
    w, norms = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1.0, np.nan, 2.0, 0.5])
    p = OptimalSampling().norm_probabilities({}, calm(w, np.array([True, False, True, True])), norms)
    np.testing.assert_allclose(p, np.array([0.1, 0, 0.6, 0.2]) / 0.9)
    still = OptimalSampling().norm_probabilities({}, calm(w, norms > 0.7), norms * 0)
    np.testing.assert_allclose(still, [0.25, 0, 0.75, 0])


def test_no_other_probabilities_have_less_variance():
    """Var of one draw is sum w_i^2 |U_i|^2 / p_i - const; Cauchy-Schwarz: least at p_i ~ w_i |U_i|."""
    rng = np.random.default_rng(0)
    w, norms = rng.dirichlet(np.ones(6)), rng.uniform(0.1, 3, 6)
    p = OptimalSampling().norm_probabilities({}, calm(w), norms)
    least = np.sum((w * norms) ** 2 / p)
    assert least == pytest.approx(np.sum(w * norms) ** 2)
    for other in rng.dirichlet(np.ones(6), size=200):
        assert np.sum((w * norms) ** 2 / other) >= least


def test_its_surrogate_is_that_of_fedavg_with_p_equal_to_w():
    """[3] eqs. (23), (25)."""
    rng = np.random.default_rng(1)
    w, q, a = rng.dirichlet(np.ones(5)), rng.uniform(0, 0.9, 5), rng.integers(1, 9, 5).astype(float)
    p = rng.dirichlet(np.ones(5))
    omega = surrogate_weights(
        OptimalSampling().expected_coefficients(beforehand(w, q, a), 3 * p, "with_replacement"), a
    )
    np.testing.assert_allclose(omega, oracles.surrogate_weights(w, q, a), rtol=1e-13)
