"""Optuna's settings are within the space, improve the objective, and are the same after an interruption."""

from __future__ import annotations

import math

import pytest

from raylfl.tune.space import Space

optuna = pytest.importorskip("optuna")

from raylfl.tune.optuna_search import OptunaSettings  # noqa: E402

SPACE = Space.parse(
    {
        "algorithm.name": {"choice": ["fedavg", "focus"]},
        "local.lr": [
            {"loguniform": [1e-3, 1e-1], "when": {"algorithm.name": "focus"}},
            {"loguniform": [1e-2, 1.0]},
        ],
        "local.steps": {"randint": [1, 9]},
        "partition": {"choice": [{"name": "iid"}, {"name": "dirichlet", "alpha": 0.1}]},
    }
)


def objective(values):
    """Best at fedavg, lr 0.1, 4 steps."""
    bonus = 1.0 if values["algorithm.name"] == "fedavg" else 0.0
    return bonus - abs(math.log10(values["local.lr"]) + 1) - 0.1 * abs(values["local.steps"] - 4)


def search(count, seed=0):
    settings, found = OptunaSettings(SPACE, seed, {}), []
    for k in range(count):
        found.append(settings.propose(k))
        settings.learn(k, objective(found[-1]))
    return found


def test_settings_lie_in_the_space_and_follow_its_conditions():
    for values in search(30):
        low, high = (1e-3, 1e-1) if values["algorithm.name"] == "focus" else (1e-2, 1.0)
        assert low <= values["local.lr"] <= high
        assert values["local.steps"] in range(1, 9)
        assert values["partition"] in ({"name": "iid"}, {"name": "dirichlet", "alpha": 0.1})


def test_the_search_is_seeded_and_learns():
    found = search(60)
    assert found[:20] == search(20)
    assert found[:5] != search(5, seed=1)
    early, late = [sum(map(objective, found[a : a + 15])) / 15 for a in (0, 45)]
    assert late > early


def test_an_interrupted_search_keeps_its_proposals():
    found = search(12)
    again = OptunaSettings(SPACE, 0, {})
    for k, values in enumerate(found):
        again.remember(k, values)
        again.learn(k, objective(values))
    trials = again.study.trials
    assert [trial.value for trial in trials] == pytest.approx([objective(values) for values in found])
    lr = [next(v for key, v in trial.params.items() if key.startswith("local.lr")) for trial in trials]
    assert lr == pytest.approx([values["local.lr"] for values in found])


def test_a_setting_that_failed_is_no_observation():
    settings = OptunaSettings(SPACE, 0, {})
    settings.propose(0)
    settings.learn(0, None)
    assert settings.study.trials[0].state == optuna.trial.TrialState.FAIL
