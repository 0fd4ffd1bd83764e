"""FOCUS against its matrices, against gradient descent, and against the optimum under partial participation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import fedavg_matrix, full_rounds, push_pull, random_quadratics, random_rounds, simulate
from tests.oracles.cases import D, N, close, start


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("gamma", [None, 0.02])
def test_the_focus_loop_is_the_push_pull_matrices(seed: int, gamma: float | None):
    problem = random_quadratics(seed, N, D, noise=0.1 * (seed % 2))
    rounds = random_rounds(seed, 12, N, lr=0.03)
    close(
        simulate("focus", problem, rounds, start(seed), gamma=gamma),
        push_pull(problem, rounds, start(seed), gamma),
    )


@pytest.mark.parametrize("seed", range(5))
def test_fedavg_is_its_own_matrices(seed: int):
    problem, rounds = random_quadratics(seed, N, D), random_rounds(seed, 12, N)
    close(simulate("fedavg", problem, rounds, start(seed)), fedavg_matrix(problem, rounds, start(seed)))


def test_focus_tracks_the_stored_gradients():
    problem, rounds = random_quadratics(3, N, D, noise=0.3), random_rounds(3, 12, N)
    for state in simulate("focus", problem, rounds, start(3)):
        np.testing.assert_allclose(state["y"], state["g_prev_i"].sum(axis=0), atol=1e-12)


def test_focus_with_one_step_and_all_clients_is_gradient_descent_with_step_n_gamma():
    problem, rounds = random_quadratics(4, N, D), full_rounds(10, N, lr=0.05)
    x = start(4)
    for state in simulate("focus", problem, rounds, x, gamma=0.03):
        x = x - N * 0.03 * problem.global_gradient(x)
        np.testing.assert_allclose(state["x"], x, rtol=1e-12)


def test_focus_is_exact_under_partial_participation_and_fedavg_is_not():
    problem = random_quadratics(5, N, D)
    rounds = random_rounds(5, 1500, N, lr=0.02, lr_decay=1.0, include_empty=False)
    ends = {name: simulate(name, problem, rounds, start(5))[-1]["x"] for name in ("focus", "fedavg")}
    assert np.linalg.norm(ends["focus"] - problem.optimum()) < 1e-9
    assert np.linalg.norm(ends["fedavg"] - problem.optimum()) > 1e-3
