"""Runs in process, replayed by the dense simulator from their rows of participation.jsonl."""

import numpy as np
import pytest

from tests import oracles
from tests.runtime.measured import walk
from tests.runtime.modules import Quadratics
from tests.runtime.test_run import QUADRATICS
from tests.shares import one_in

CLIENTS, DIM, ROUNDS, LR = 6, 3, 8, 0.05
UNIFORM = ["participation.name=uniform", "participation.size=3"]
REPLACED = ["participation={name: weighted, weights: data_size, size: 4, replace: true}"]
AVAILABLE = ["participation.name=bernoulli", "participation.p=0.5"]
LOSSY = ["link.name=bernoulli", "link.q={linspace: [0.0, 0.4]}"]
UNEQUAL = ["local.steps={list: [1, 2, 3, 4, 5, 2]}"]

CASES = [  # the mathematics of all algorithms: tests/algorithms/test_oracle.py
    ("fedavg", {"aggregate": "weighted", "gamma": 0.7}, UNIFORM),
    ("fedavg", {"aggregate": "anonymous_importance"}, REPLACED),
    ("focus", {}, AVAILABLE),
    ("sfl", {"gamma": 0.5}, AVAILABLE),
    ("scaffold", {"option": 1}, UNIFORM),
    ("fednova", {}, AVAILABLE),
    ("feddyn", {"alpha": 0.5}, AVAILABLE),
    ("fedau", {"cutoff": 3}, AVAILABLE),
    ("fedawe", {}, AVAILABLE),
    ("fedvarp", {"lost": "reuse"}, REPLACED),
    ("fedaware", {"alpha": 0.3, "normalize": True}, UNIFORM),
    ("fedacs", {}, UNIFORM),
    ("optimal_sampling", {"norms": "stale"}, UNIFORM),
    ("local_only", {}, AVAILABLE),
]


def configured(name, options, overrides):
    config = {
        **QUADRATICS,
        "rounds": ROUNDS,
        "local": {"batch_size": "full", "lr": LR},
        "algorithm": {"name": name, **options},
    }
    return walk([*LOSSY, *UNEQUAL, *overrides], config)[1]


def replayed(rows, with_p):
    """The rounds of a run as the oracle reads them; q and K of all clients as LOSSY and UNEQUAL have them."""
    q = np.linspace(0.0, 0.4, CLIENTS).tolist()
    return [
        oracles.Round(
            row["round"], row["cohort"], row["draws"], row["received"], row["steps"], LR, q,
            over_all(row) if "p" in row else [1 / CLIENTS] * CLIENTS if with_p else None, [1, 2, 3, 4, 5, 2],
        )
        for row in rows
    ]  # fmt: skip


def over_all(row):
    """The sampling probabilities p [N] of a row, which are recorded for the cohort; nan for the others."""
    p = np.full(CLIENTS, np.nan)
    p[row["cohort"]] = row["p"]
    return p.tolist()


@pytest.mark.parametrize(("name", "options", "participation"), one_in(3, CASES))
def test_a_run_equals_the_oracle_on_its_own_trace(name, options, participation):
    run = configured(name, options, participation)
    data = Quadratics()
    problem = oracles.Quadratics(data.hessians, data.b, np.full(CLIENTS, 1 / CLIENTS), np.ones(CLIENTS, dtype=np.int64))
    rounds = replayed([row for _, _, row, _ in run], participation is REPLACED)
    assert any(not all(r.received) for r in rounds)
    assert len({tuple(r.cohort) for r in rounds}) > 1
    history = oracles.simulate(name, problem, rounds, np.ones(DIM), **options)
    expected = np.array([problem_distance(problem, state["x"]) for state in history])
    np.testing.assert_allclose([metrics["global/distance"] for _, metrics, *_ in run], expected, rtol=1e-9)
    np.testing.assert_allclose(run[-1][-1], history[-1]["x"], rtol=1e-10, atol=1e-12)


def problem_distance(problem, x):
    optimum = problem.optimum()
    return np.linalg.norm(x - optimum) / np.linalg.norm(optimum)
