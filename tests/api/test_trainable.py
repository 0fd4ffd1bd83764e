"""A run as a trial of a user's own Tuner."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import raylfl
from raylfl.errors import BadConfig
from tests.runtime.tiny import ONE_BY_ONE as TINY


@pytest.fixture
def tune(monkeypatch):
    """Stand-ins for the two functions of Ray Tune that a trial calls."""
    from ray import tune

    reported = []
    monkeypatch.setattr(tune, "report", lambda row: reported.append(row))
    monkeypatch.setattr(tune, "get_context", lambda: SimpleNamespace(get_trial_id=lambda: "t1"))
    return reported


def test_a_trial_is_the_run_with_the_values_and_reports_every_round(tune, runs, tmp_path):
    raylfl.trainable(TINY, runs)({"local.lr": 0.2, "participation": {"name": "uniform", "size": 2}})
    twin = raylfl.run(TINY, [*runs, "local.lr=0.2", "participation.size=2"])
    assert [row["train/loss"] for row in tune] == [row["train/loss"] for row in twin.metrics]
    assert tune[-1]["run_dir"] == str(tmp_path / "runs" / "tiny" / "t1")
    assert torch.equal(raylfl.load(tune[-1]["run_dir"]).params, twin.params)


def test_mistakes_come_when_the_function_is_made(runs):
    with pytest.raises(BadConfig, match="did you mean rounds"):
        raylfl.trainable(TINY, [*runs, "round=3"])
