"""FedACS and c-a-FedAvg: sampling, consistency, estimates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raylfl.algorithms.cafedavg import CAFedAvg
from raylfl.algorithms.fedacs import MOST_FAILURE, FedACS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.population import Population
from raylfl.diagnostics.surrogate import chi2, surrogate_weights
from raylfl.errors import BadValue
from raylfl.testing import recorded_round
from tests import oracles
from tests.algorithms.replay import beforehand


def system(seed: int, n: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random (w, q, |a|_1)."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(n)), rng.uniform(0, 0.9, n), rng.integers(1, 40, n).astype(float)


@pytest.mark.parametrize("seed", range(5))
def test_probabilities_are_those_of_equation_15_and_make_omega_equal_w(seed):
    w, q, a = system(seed)
    c = beforehand(w, q, a, size=6)
    p = FedACS().probabilities({}, c)
    np.testing.assert_allclose(p, oracles.fedacs_probabilities(w, q, a), rtol=1e-13)
    omega = surrogate_weights(FedACS().expected_coefficients(c, 6 * p, "with_replacement"), a)
    np.testing.assert_allclose(omega, w, rtol=1e-12)
    assert chi2(w, omega) < 1e-24
    uniform = surrogate_weights(FedAvg(aggregate="anonymous").expected_coefficients(c, 6 * w, "with_replacement"), a)
    assert chi2(w, uniform) > 0.01  # the bias that FedACS removes


def test_the_unavailable_are_never_drawn_and_omega_is_w_among_the_others():
    w, q, a = system(7)
    available = np.arange(20) % 3 > 0
    c = beforehand(w, np.where(available, q, np.nan), a, available)
    p = FedACS().probabilities({}, c)
    assert (p[~available] == 0).all()
    omega = surrogate_weights(np.where(available, p * (1 - q), 0), a)
    np.testing.assert_allclose(omega, np.where(available, w, 0) / w[available].sum(), rtol=1e-12)


def test_a_client_that_is_never_received_is_left_out():
    p = FedACS().probabilities({}, beforehand(np.full(3, 1 / 3), np.array([1.0, 0.0, 0.5]), np.array([2.0, 2, 2])))
    np.testing.assert_allclose(p, [0, 1 / 3, 2 / 3])
    none = FedACS().probabilities({}, beforehand(np.full(2, 0.5), np.ones(2), np.ones(2)))
    np.testing.assert_array_equal(none, [0, 0])


def test_unknown_failure_probabilities_need_estimates():
    c = beforehand(np.full(2, 0.5), np.array([0.1, np.nan]), np.ones(2))
    with pytest.raises(BadValue, match="estimate=known"):
        FedACS().probabilities({}, c)


def test_cafedavg_corrects_for_links_but_not_for_local_work():
    w, q, a = system(4)
    omega = surrogate_weights(CAFedAvg().expected_coefficients(beforehand(w, q, a), 3 * w, "with_replacement"), a)
    np.testing.assert_allclose(omega, w * a / (w @ a), rtol=1e-13)


def test_cafedavg_needs_the_failure_probabilities():
    population = Population.of(np.ones(2))
    r = recorded_round(0, [0, 1], population, failure=np.nan).received_view
    with pytest.raises(BadValue, match="cafedavg"):
        CAFedAvg().server_step({"x": torch.zeros(1)}, {"update": torch.ones(2, 1)}, r)


# -- estimates -----------------------------------------------------------------------------------------------


def watch(algorithm: FedACS, rounds: int, q: np.ndarray, steps: np.ndarray, seed: int = 0) -> dict:
    """The server after rounds in which it sampled by its own estimates, two draws each."""
    rng, n = np.random.default_rng(seed), len(q)
    population = Population.of(np.ones(n))
    server = algorithm.init_server(torch.zeros(1), population)
    c = beforehand(population.weights, np.full(n, np.nan), np.full(n, np.nan), size=2)
    for k in range(rounds):
        cohort, draws = np.unique(rng.choice(n, 2, p=algorithm.probabilities(server, c)), return_counts=True)
        received = rng.random(len(cohort)) >= q[cohort]
        r = recorded_round(k, cohort, population, steps=steps, draws=draws, received=received, failure=q)
        got = r.received_view
        if len(got.cohort):
            server, _ = algorithm.server_step(server, {"update": torch.zeros(len(got.cohort), 1)}, got)
        else:
            server = algorithm.empty_round(server, r)
    return server


def test_estimates_converge_to_the_truth_and_so_do_the_probabilities():
    """rate 0: q_hat is a mean of n_i Bernoulli draws; 4000 rounds leave about +-0.015."""
    q, steps = np.array([0.0, 0.2, 0.4, 0.6]), np.array([1, 2, 5, 9])
    algorithm = FedACS(estimate="ema", rate=0.0)
    server = watch(algorithm, 4000, q, steps)
    np.testing.assert_allclose(server["q"], q, atol=0.05)
    np.testing.assert_allclose(server["a"], steps, rtol=1e-12)
    w = np.full(4, 0.25)
    p = algorithm.probabilities(server, beforehand(w, np.full(4, np.nan), np.full(4, np.nan)))
    assert chi2(w, surrogate_weights(p * (1 - q), steps.astype(float))) < 0.01


def test_a_mean_of_rate_zero_assumes_one_received_upload():
    server = watch(FedACS(estimate="ema", rate=0.0), 30, np.full(3, 0.5), np.ones(3, dtype=np.int64))
    asked, received = server["times_sampled"].numpy(), server["times_received"].numpy()
    np.testing.assert_allclose(server["q"], (asked - received) / (asked + 1), rtol=1e-12)


def test_an_exponential_mean_forgets_at_its_rate():
    """Client 0 is received 50 times, then lost 3 times: q_hat = 1 - 0.9^3."""
    algorithm, population = FedACS(estimate="ema", rate=0.1), Population.of(np.ones(2))
    server = algorithm.init_server(torch.zeros(1), population)
    for k in range(53):
        r = recorded_round(k, [0, 1], population, received=[k < 50, True], failure=np.nan)
        up = {"update": torch.zeros(int(r.received.sum()), 1)}
        server, _ = algorithm.server_step(server, up, r.received_view)
    np.testing.assert_allclose(server["q"], [1 - 0.9**3, 0.0], atol=1e-12)


def test_losses_of_an_empty_round_are_seen_and_the_model_stays():
    algorithm, population = FedACS(estimate="ema"), Population.of(np.ones(3))
    before = algorithm.init_server(torch.ones(2), population)
    after = algorithm.empty_round(before, recorded_round(0, [2], population, received=False))
    np.testing.assert_allclose(after["q"], [0, 0, 0.5])
    assert torch.equal(after["x"], before["x"])
    assert float(before["q"].sum()) == 0.0  # not changed in place


def test_a_dead_client_cannot_draw_all_samples_to_itself():
    server = watch(FedACS(estimate="ema"), 300, np.array([1.0, 0, 0, 0]), np.ones(4, dtype=np.int64))
    assert float(server["q"][0]) > MOST_FAILURE
    c = beforehand(np.full(4, 0.25), np.full(4, np.nan), np.full(4, np.nan))
    p = FedACS(estimate="ema").probabilities(server, c)
    assert p[0] == pytest.approx(20 / 23)


def test_a_client_never_received_counts_as_the_mean_of_the_others():
    algorithm, population = FedACS(estimate="ema"), Population.of(np.ones(3))
    server = algorithm.init_server(torch.zeros(1), population)
    c = beforehand(population.weights, np.full(3, np.nan), np.full(3, np.nan))
    np.testing.assert_allclose(algorithm.probabilities(server, c), population.weights)
    r = recorded_round(0, [0, 1], population, steps=[2, 6, 50])
    server, _ = algorithm.server_step(server, {"update": torch.zeros(2, 1)}, r.received_view)
    np.testing.assert_allclose(algorithm.probabilities(server, c), np.array([1 / 2, 1 / 6, 1 / 4]) * 12 / 11)
