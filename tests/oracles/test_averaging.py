"""The FedAvg family against closed forms."""

from __future__ import annotations

import numpy as np

from tests.oracles import (
    distances,
    full_rounds,
    random_quadratics,
    simulate,
)
from tests.oracles.cases import D, N, start


def test_fedprox_contracts_towards_the_proximal_point():
    """[3] eq. 31: x_K - C = (1 - eta mu - eta)^K (x_r - C), C = (E + mu x_r)/(1 + mu), on |x - E|^2/2."""
    problem, x, mu = distances(start(30, 3)[None]), np.ones(3), 0.7
    centre = (problem.linear[0] + mu * x) / (1 + mu)
    expected = centre + (1 - 0.1 * mu - 0.1) ** 4 * (x - centre)
    state = simulate("fedprox", problem, full_rounds(1, 1, steps=4, lr=0.1), x, mu=mu)[0]
    np.testing.assert_allclose(state["x"], expected, rtol=1e-13)


def test_the_adaptive_servers_take_their_first_step_in_closed_form():
    problem, x, rounds = random_quadratics(18, N, D), start(18), full_rounds(1, N, steps=2)
    d = x - simulate("fedavg", problem, rounds, x)[0]["x"]
    tau = 1e-2
    v = {"fedadagrad": tau**2 + d**2, "fedadam": 0.99 * tau**2 + 0.01 * d**2}
    v["fedyogi"] = tau**2 + 0.01 * d**2 * np.where(d**2 > tau**2, 1, -1)
    for name, second in v.items():
        m = d if name == "fedadagrad" else 0.1 * d
        state = simulate(name, problem, rounds, x, tau=tau, gamma=0.5)[0]
        np.testing.assert_allclose(state["x"], x - 0.5 * m / (np.sqrt(second) + tau), rtol=1e-12)
