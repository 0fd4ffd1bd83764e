"""The FedAvg family against closed forms, and its expectations over links and draws against derived values."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.oracles import (
    Local,
    Round,
    distances,
    full_rounds,
    local_model,
    optimal_probabilities,
    random_quadratics,
    simulate,
)
from tests.oracles.cases import REPEATED, D, N, start, system


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


@pytest.mark.parametrize("name", ["cafedavg", "fednova"])
def test_the_expectation_over_the_links_weighs_every_client_as_derived(name: str):
    """All 2^N outcomes of the links: cafedavg sums s_i U_i/M ([3] eq. 113); fednova `sent` moves by
    tau_eff sum_i (1-q_i) s_i U_i/(M K_i), tau_eff from all N (eq. 116).
    """
    problem, x, (_, q, _) = random_quadratics(31, N, D), start(31), system(31)
    steps, draws, w = np.array([3, 1, 4, 2, 5]), [1, 3, 2], problem.weights
    mean = np.zeros(D)
    for links in itertools.product([True, False], repeat=3):
        chance = np.prod([1 - q[i] if here else q[i] for i, here in enumerate(links)])
        some = Round(0, [0, 1, 2], draws, list(links), steps[:3].tolist(), 0.05, q.tolist(), None, steps.tolist())
        options: dict[str, Any] = {"normalise": "sent"} if name == "fednova" else {}
        mean += chance * simulate(name, problem, [some], x, gamma=0.5, **options)[0]["x"]
    factor = np.ones(N)
    if name == "fednova":
        factor = np.sum(w * (1 - q) * steps) / np.sum(w * (1 - q)) * (1 - q) / steps
    moves = [factor[i] * draws[i] / 6 * (x - local_model(problem, i, x, some, Local())) for i in range(3)]
    np.testing.assert_allclose(mean, x - 0.5 * np.sum(moves, axis=0), rtol=1e-12)


def test_optimal_sampling_is_unbiased_over_one_draw():
    """sum_i p_i (w_i/p_i) U_i = sum_i w_i U_i, the drawn client received."""
    problem, x = random_quadratics(20, N, D), start(20)
    steps, p = [1, 2, 3, 4, 5], np.array([0.1, 0.3, 0.2, 0.15, 0.25])
    mean = np.zeros(D)
    for i in range(N):
        r = Round(0, [i], [1], [True], [steps[i]], 0.05, p=p.tolist())
        mean += p[i] * simulate("optimal_sampling", problem, [r], x)[0]["x"]
    everyone = Round(0, list(range(N)), [1] * N, [True] * N, steps, 0.05)
    np.testing.assert_allclose(mean, simulate("fedavg", problem, [everyone], x, aggregate="full")[0]["x"], rtol=1e-12)


def test_optimal_probabilities_count_an_unknown_norm_as_the_mean_of_the_known():
    w = np.array([0.5, 0.25, 0.25])
    np.testing.assert_allclose(optimal_probabilities(w, np.full(3, np.nan)), w)
    known = np.array([1.0, 3.0, np.nan])
    np.testing.assert_allclose(optimal_probabilities(w, known), np.array([0.5, 0.75, 0.5]) / 1.75)


def test_optimal_sampling_takes_its_own_probabilities_where_the_round_has_none():
    problem, x = random_quadratics(21, N, D), start(21)
    rounds = [replace(r, p=None) for r in REPEATED]
    stale, fresh = (simulate("optimal_sampling", problem, rounds, x, norms=norms) for norms in ("stale", "fresh"))
    np.testing.assert_allclose(stale[0]["p"], problem.weights)
    np.testing.assert_allclose(stale[3]["p"], optimal_probabilities(problem.weights, stale[2]["norms_i"]))
    lengths = [np.linalg.norm(x - local_model(problem, i, x, rounds[0], Local())) for i in range(N)]
    np.testing.assert_allclose(fresh[0]["p"], problem.weights * lengths / np.sum(problem.weights * lengths))
