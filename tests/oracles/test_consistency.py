"""Surrogate weights, fixed points and calibration ([3]) against closed forms and against iterated rounds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import (
    Array,
    Local,
    Round,
    biased_fixed_point,
    calibrated_lr,
    chi2,
    distances,
    expected_fixed_point,
    fedacs_probabilities,
    local_model,
    random_quadratics,
    surrogate_weights,
)
from tests.oracles.cases import D, N, start, system


@pytest.mark.parametrize("seed", range(5))
def test_fedacs_makes_the_surrogate_the_objective(seed: int):
    w, q, a = system(seed)
    omega = surrogate_weights(fedacs_probabilities(w, q, a), q, a)
    np.testing.assert_allclose(omega, w, rtol=1e-14)
    assert chi2(w, omega) < 1e-25
    assert chi2(w, surrogate_weights(w, q, a)) > 1e-3
    np.testing.assert_allclose(fedacs_probabilities(w, np.full(N, 0.3), np.full(N, 7.0)), w)


def test_chi2_of_two_clients_is_the_form_of_equation_90():
    s = np.array([0.8 * 3, 0.6 * 10])  # (1-q) T, w = 1/2
    omega = surrogate_weights(np.full(2, 0.5), np.array([0.2, 0.4]), np.array([3.0, 10.0]))
    assert chi2(np.full(2, 0.5), omega) == pytest.approx((s[1] - s[0]) ** 2 / (4 * s[0] * s[1]))


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


def test_calibration_gives_all_methods_the_effective_step_of_fedavg():
    """The expected sum of |c_i| |a_i|_1 eta over the received is eta_eff T_eff ([3] App. I.2)."""
    (w, q, a), eta = system(24), 0.1
    target = np.sum(w * (1 - q) * eta * a)
    p = fedacs_probabilities(w, q, a)
    assert np.sum(p * (1 - q) * calibrated_lr("fedacs", eta, w, q, a) * a) == pytest.approx(target, rel=1e-13)
    for name in ("cafedavg", "fedvarp"):
        assert np.sum(w * calibrated_lr(name, eta, w, q, a) * a) == pytest.approx(target, rel=1e-13)
    assert calibrated_lr("fedavg", eta, w, q, a) == eta
    tau_eff = np.sum(w * (1 - q) * a) / np.sum(w * (1 - q))  # fednova `sent`: c_i = tau_eff s_i/(M |a_i|_1)
    assert np.sum(w * (1 - q) * tau_eff / a * eta * a) == pytest.approx(target, rel=1e-13)
