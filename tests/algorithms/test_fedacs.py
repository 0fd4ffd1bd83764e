"""Methods that choose their sampling: FedACS, c-a-FedAvg, optimal sampling; and calibrated step lengths."""

import numpy as np
import pytest
import torch

from raylfl.algorithms.cafedavg import CAFedAvg
from raylfl.algorithms.fedacs import MOST_FAILURE, FedACS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.fednova import FedNova
from raylfl.algorithms.mifa import FedVARP
from raylfl.algorithms.optimal_sampling import OptimalSampling
from raylfl.core.algorithm import Algorithm
from raylfl.core.population import Population
from raylfl.diagnostics.surrogate import chi2, surrogate_weights
from raylfl.errors import BadValue
from raylfl.testing import recorded_round
from tests import oracles
from tests.algorithms.replay import beforehand, setting, states


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


def test_clients_that_are_never_received_are_left_out_and_unknown_failures_need_estimates():
    p = FedACS().probabilities({}, beforehand(np.full(3, 1 / 3), np.array([1.0, 0.0, 0.5]), np.array([2.0, 2, 2])))
    np.testing.assert_allclose(p, [0, 1 / 3, 2 / 3])
    none = FedACS().probabilities({}, beforehand(np.full(2, 0.5), np.ones(2), np.ones(2)))
    np.testing.assert_array_equal(none, [0, 0])
    c = beforehand(np.full(2, 0.5), np.array([0.1, np.nan]), np.ones(2))
    with pytest.raises(BadValue, match="estimate=known"):
        FedACS().probabilities({}, c)


def test_cafedavg_corrects_for_links_of_known_failures_but_not_for_local_work():
    w, q, a = system(4)
    omega = surrogate_weights(CAFedAvg().expected_coefficients(beforehand(w, q, a), 3 * w, "with_replacement"), a)
    np.testing.assert_allclose(omega, w * a / (w @ a), rtol=1e-13)
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


RULE = "anonymous"
CALIBRATED: dict[str, Algorithm] = {
    "fedavg": FedAvg(aggregate=RULE, calibrate=True),
    "fedacs": FedACS(calibrate=True),
    "cafedavg": CAFedAvg(calibrate=True),
    "fedvarp": FedVARP(lost="reuse", calibrate=True),
    "fednova": FedNova(normalise="sent", calibrate=True),
    "optimal_sampling": OptimalSampling(calibrate=True),
}


@pytest.mark.parametrize("name", CALIBRATED)
@pytest.mark.parametrize("seed", range(3))
def test_eta_is_that_of_the_published_formulas(name, seed):
    w, q, a = system(seed, 8)
    ours = CALIBRATED[name].step_length(beforehand(w, q, a))
    assert ours == pytest.approx(oracles.calibrated_lr(name, 0.1, w, q, a), rel=1e-13)


@pytest.mark.parametrize("name", ["fedacs", "cafedavg", "fedvarp"])
def test_without_calibrate_and_if_no_client_can_be_reached_eta_stays(name):
    plain = {"fedacs": FedACS(), "cafedavg": CAFedAvg(), "fedvarp": FedVARP()}[name]
    assert plain.step_length(beforehand(*system(0, 8))) == 0.1
    assert CALIBRATED[name].step_length(beforehand(np.full(2, 0.5), np.ones(2), np.ones(2))) == 0.1


@pytest.mark.parametrize("name", ["fedacs", "cafedavg"])
def test_absent_clients_and_dead_links_keep_the_step_equally_long(name):
    w, q, a = system(5, 8)
    q[3], a[4] = 1.0, 0.0
    available = np.arange(8) != 1
    c = beforehand(w, q, a, available)
    there = np.where(available, w, 0) / w[available].sum()
    p = FedACS().probabilities({}, c)
    step = p * (1 - q) * a if name == "fedacs" else np.where(q < 1, there * a, 0)
    reached = CALIBRATED[name].step_length(c) * step.sum()
    assert reached == pytest.approx(0.1 * np.sum(there * (1 - q) * a))


def test_calibrating_needs_known_links_and_an_unbiased_reference():
    w, q, a = np.full(2, 0.5), np.array([0.5, np.nan]), np.ones(2)
    for unknown in (q, np.full(2, np.nan)):
        with pytest.raises(BadValue, match="not known"):
            FedACS(calibrate=True).step_length(beforehand(w, unknown, a))
    assert np.isfinite(FedACS(calibrate=True).step_length(beforehand(w, q, a, np.array([True, False]))))
    with pytest.raises(BadValue, match="calibrate"):
        FedAvg(aggregate="mean", calibrate=True)
    with pytest.raises(BadValue, match=r"eq\. \(116\)"):
        FedNova(calibrate=True)


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


def test_fresh_probabilities_weigh_the_norms_of_those_available():
    w, norms = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1.0, np.nan, 2.0, 0.5])
    p = OptimalSampling().norm_probabilities({}, calm(w, np.array([True, False, True, True])), norms)
    np.testing.assert_allclose(p, np.array([0.1, 0, 0.6, 0.2]) / 0.9)
    still = OptimalSampling().norm_probabilities({}, calm(w, norms > 0.7), norms * 0)
    np.testing.assert_allclose(still, [0.25, 0, 0.75, 0])


def test_its_surrogate_is_that_of_fedavg_with_p_equal_to_w():
    """[3] eqs. (23), (25)."""
    rng = np.random.default_rng(1)
    w, q, a = rng.dirichlet(np.ones(5)), rng.uniform(0, 0.9, 5), rng.integers(1, 9, 5).astype(float)
    p = rng.dirichlet(np.ones(5))
    omega = surrogate_weights(
        OptimalSampling().expected_coefficients(beforehand(w, q, a), 3 * p, "with_replacement"), a
    )
    np.testing.assert_allclose(omega, oracles.surrogate_weights(w, q, a), rtol=1e-13)
