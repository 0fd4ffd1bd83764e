"""FedNova in both forms: its expected weights, and clients without steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raylfl.algorithms.fednova import FedNova
from raylfl.core.population import Population
from raylfl.diagnostics.surrogate import chi2, surrogate_weights
from raylfl.errors import BadValue
from raylfl.testing import recorded_round
from tests.algorithms.replay import beforehand


def test_a_client_that_took_no_step_adds_nothing():
    """K = (0, 2), w = 1/2 each: tau = 1, and client 1 brings U/2 with share 1/2."""
    r = recorded_round(0, [0, 1], Population.of(np.ones(2)), steps=[0, 2]).received_view
    up = {"update": torch.tensor([[0.0], [8.0]])}
    server, info = FedNova().server_step({"x": torch.zeros(1)}, up, r)
    assert info["tau"] == 1.0
    assert float(server["x"]) == -2.0


def test_weights_are_known_and_consistent_only_where_it_is_certain_who_is_received():
    rng = np.random.default_rng(2)
    w, a = rng.dirichlet(np.ones(5)), rng.integers(1, 9, 5).astype(float)
    expected = FedNova().expected_coefficients(beforehand(w, np.zeros(5), a), np.ones(5), "independent")
    np.testing.assert_allclose(surrogate_weights(expected, a), w, rtol=1e-12)
    w, a, certain = np.full(3, 1 / 3), np.array([1.0, 2.0, 4.0]), np.array([1.0, 0.0, 1.0])
    found = FedNova().expected_coefficients(beforehand(w, np.zeros(3), a), certain, "independent")
    np.testing.assert_allclose(found, w * certain / a)
    for marginals in (np.array([1.0, 0.0, 0.5]), np.array([0.5, 0.5, 0.5])):
        assert FedNova().expected_coefficients(beforehand(w, np.zeros(3), a), marginals, "independent") is None


def test_the_form_sent_leaves_the_bias_of_the_links_only():
    rng = np.random.default_rng(3)
    w, q, a = rng.dirichlet(np.ones(5)), rng.uniform(0, 0.9, 5), rng.integers(1, 9, 5).astype(float)
    algorithm = FedNova(normalise="sent")
    omega = surrogate_weights(algorithm.expected_coefficients(beforehand(w, q, a), 3 * w, "with_replacement"), a)
    np.testing.assert_allclose(omega, w * (1 - q) / np.sum(w * (1 - q)), rtol=1e-12)
    assert FedNova().expected_coefficients(beforehand(w, q, a), 3 * w, "with_replacement") is None
    perfect = algorithm.expected_coefficients(beforehand(w, np.zeros(5), a), 3 * w, "with_replacement")
    assert chi2(w, surrogate_weights(perfect, a)) < 1e-24


def test_the_form_sent_needs_all_links_and_steps():
    population = Population.of(np.ones(2))
    unrecorded = replace(recorded_round(0, [0], population), system_of=None).received_view
    half_known = recorded_round(0, [0], population, failure=[0.1, np.nan]).received_view
    for r in (unrecorded, half_known):
        with pytest.raises(BadValue, match="normalise=sent"):
            FedNova(normalise="sent").server_step({"x": torch.zeros(1)}, {"update": torch.ones(1, 1)}, r)


@pytest.mark.parametrize("seed", range(3))
def test_under_quantity_skew_a_step_is_n_times_the_sum_of_p_squared_too_long(seed):
    """Epochs make K_i proportional to p_i. Clients that solve their problem send equal updates U_i = x - x*.

    The server then moves by N sum p_i^2 times the update, away from x* if the factor is above 2; gamma compensates it.
    """
    counts = np.random.default_rng(seed).integers(1, 200, 10)
    p, x = counts / counts.sum(), torch.full((1,), 3.0, dtype=torch.float64)
    r = recorded_round(0, list(range(10)), Population.of(counts, "data_size"), steps=counts.tolist()).received_view
    factor = 10 * float((p**2).sum())
    up = {"update": x.repeat(10, 1)}
    server, _ = FedNova().server_step({"x": x}, up, r)
    assert float(server["x"]) == pytest.approx(3.0 * (1 - factor))
    cured, _ = FedNova(gamma=1 / factor).server_step({"x": x}, up, r)
    assert float(cured["x"]) == pytest.approx(0.0, abs=1e-12)
