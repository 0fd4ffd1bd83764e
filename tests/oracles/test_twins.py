"""The oracles against each other, on rounds in which two must coincide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.oracles import Round, full_rounds, random_quadratics, random_rounds, simulate
from tests.oracles.cases import FULL, RANDOM, REPEATED, D, N, close, start

EQUAL = random_rounds(13, 12, N, unequal_steps=False, max_steps=3)
LOSSLESS = random_rounds(14, 12, N, lossy=False, include_empty=False, with_replacement=True)
SINGLE = random_rounds(15, 12, N, size=1)
ONE_STEP = random_rounds(16, 12, N, max_steps=1)

TWINS = [
    ("fedprox", {"mu": 0.0}, "fedavg", {}, RANDOM),
    ("fedavgm", {"beta": 0.0}, "fedavg", {}, RANDOM),
    ("fednova", {}, "fedavg", {"aggregate": "weighted"}, EQUAL),
    ("fedacs", {}, "fedavg", {"aggregate": "anonymous"}, REPEATED),
    ("cafedavg", {}, "fedavg", {"aggregate": "anonymous"}, LOSSLESS),
    ("fedavg", {"aggregate": "mean"}, "fedavg", {"aggregate": "anonymous"}, LOSSLESS),
    ("sfl", {}, "fedavg", {}, SINGLE),
    ("sfl", {"gamma": 0.4}, "fedavg", {"gamma": 0.4}, SINGLE),
    ("ssl", {}, "sfl", {}, RANDOM),
    ("splitfed", {}, "fedavg", {}, RANDOM),
    ("fedsgd", {"aggregate": "weighted"}, "fedavg", {"aggregate": "weighted"}, ONE_STEP),
    ("mifa", {}, "fedavg", {}, FULL),
    ("fedvarp", {}, "fedavg", {}, FULL),
    ("fedvarp", {"lost": "reuse"}, "fedavg", {"aggregate": "anonymous"}, LOSSLESS),
    ("fedau", {}, "fedavg", {}, FULL),
    ("fedau", {"normalize": True}, "fedavg", {}, FULL),
    ("fedawe", {}, "fedavg", {}, FULL),
    ("fedavg", {"aggregate": "weighted"}, "fedavg", {"aggregate": "full"}, FULL),
    ("fedavg", {"aggregate": "anonymous_uniform"}, "fedavg", {"aggregate": "full"}, FULL),
    ("fedaware", {"warmup": "all"}, "fedaware", {"warmup": "active"}, RANDOM),
    ("fedaware", {"warmup": "fedavg"}, "fedaware", {"warmup": "active"}, FULL),
]


@pytest.mark.parametrize(("one", "ours", "other", "theirs", "rounds"), TWINS)
def test_twins_coincide(one: str, ours: dict, other: str, theirs: dict, rounds: list[Round]):
    problem, x = random_quadratics(7, N, D), start(7)
    close(simulate(one, problem, rounds, x, **ours), simulate(other, problem, rounds, x, **theirs))


def test_fedavg_with_one_step_and_all_clients_is_gradient_descent():
    problem, x = random_quadratics(8, N, D), start(8)
    for state in simulate("fedavg", problem, full_rounds(5, N, lr=0.1), x, aggregate="full", gamma=0.7):
        x = x - 0.07 * problem.global_gradient(x)
        np.testing.assert_allclose(state["x"], x, rtol=1e-13)


def test_anonymous_importance_with_p_equal_to_w_is_anonymous():
    problem, x = random_quadratics(9, N, D), start(9)
    rounds = [replace(r, p=problem.weights.tolist()) for r in REPEATED]
    close(
        simulate("fedavg", problem, rounds, x, aggregate="anonymous_importance"),
        simulate("fedavg", problem, rounds, x, aggregate="anonymous"),
    )
    uniform = simulate("fedavg", problem, RANDOM, x, aggregate="anonymous_uniform")
    close(uniform, simulate("fedavg", problem, RANDOM, x, aggregate="anonymous_importance"))


def test_fednova_sent_with_equal_work_and_links_is_anonymous():
    problem, x = random_quadratics(10, N, D), start(10)
    close(
        simulate("fednova", problem, EQUAL, x, normalise="sent"),
        simulate("fedavg", problem, EQUAL, x, aggregate="anonymous"),
    )


@pytest.mark.parametrize("name", ["scaffold", "scaffnew"])
def test_zero_variates_make_the_first_round_fedavg(name: str):
    problem, x = random_quadratics(11, N, D), start(11)
    rounds = RANDOM[:1]
    close(simulate(name, problem, rounds, x), simulate("fedavg", problem, rounds, x))
