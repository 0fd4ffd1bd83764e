"""Control variates and remembered updates against closed forms and the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import Round, distances, full_rounds, random_quadratics, simulate
from tests.oracles.cases import D, N, start


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scaffold", {}),
        ("scaffold", {"option": 1}),
        ("scaffnew", {}),
        ("feddyn", {"alpha": 1.0}),
        ("focus", {}),
    ],
)
def test_drift_correction_is_exact_under_full_participation(name: str, options: dict):
    problem = random_quadratics(15, N, D, weights="uniform")
    end = simulate(name, problem, full_rounds(800, N, steps=4, lr=0.05), start(15), **options)[-1]
    np.testing.assert_allclose(end["x"], problem.optimum(), atol=1e-9)
    if name in ("feddyn", "scaffnew", "scaffold"):
        variates = end["c_i"] if name == "scaffold" else end["h_i"]
        gradients = [problem.full_gradient(i, end["x"]) for i in range(N)]
        np.testing.assert_allclose(variates, gradients, atol=1e-8)


def test_feddyn_takes_two_rounds_in_closed_form():
    """One of two clients on x^2/2, K = 2: h_i = alpha U_i, h = alpha U_i/2, x = x_K - h/alpha."""
    problem, alpha, eta = distances(np.zeros((2, 1))), 0.4, 0.1
    rounds = [Round(r, [0], [1], [True], [2], eta) for r in range(2)]
    x, h_0, h = 1.0, 0.0, 0.0
    for state in simulate("feddyn", problem, rounds, np.ones(1), alpha=alpha):
        first = x - eta * (x - h_0)
        second = first - eta * (first - h_0 + alpha * (first - x))
        h_0, h = h_0 + alpha * (x - second), h + alpha * (x - second) / 2
        x = second - h / alpha
        np.testing.assert_allclose([state["x"][0], state["h"][0], state["h_i"][0, 0]], [x, h, h_0], rtol=1e-13)


def test_mifa_and_fedvarp_use_what_they_remember():
    """Two clients on |x - E_i|^2/2, K = 1: round 0 client 0, round 1 client 1."""
    problem, x = distances(np.array([[1.0], [3.0]])), np.zeros(1)
    rounds = [Round(r, [r], [1], [True], [1], 0.1) for r in range(2)]
    u0 = 0.1 * (0.0 - 1)
    mifa = simulate("mifa", problem, rounds, x)
    np.testing.assert_allclose(mifa[0]["x"], -u0 / 2)
    u1 = 0.1 * (-u0 / 2 - 3)
    np.testing.assert_allclose(mifa[1]["x"], -u0 / 2 - (u0 + u1) / 2, rtol=1e-14)
    fedvarp = simulate("fedvarp", problem, rounds, x)
    np.testing.assert_allclose(fedvarp[0]["x"], -u0)
    u1 = 0.1 * (-u0 - 3)
    np.testing.assert_allclose(fedvarp[1]["x"], -u0 - (u1 + u0 / 2), rtol=1e-14)
