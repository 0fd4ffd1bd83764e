"""Early stopping: the number of rounds, and the files of a stopped run."""

from __future__ import annotations

import json

import pytest
import torch

import raylfl
from raylfl.config.groups.records import StopConfig
from raylfl.errors import BadConfig, BadValue
from raylfl.runtime.round.early_stop import EarlyStop
from tests.runtime.tiny import ONE_BY_ONE as TINY

LOSS = "stop.metric=test/loss"


def run(runs, *overrides):
    return raylfl.run({**TINY, "eval": {"every": 1}}, [*runs, *overrides])


def rounds_until(values, name="test/accuracy", **stop):
    """The number of values until the rule ends the run; None if it never does."""
    rule = EarlyStop(StopConfig(metric=name, **stop))
    for r, value in enumerate(values):
        rule.update({"round": r, **({} if value is None else {name: value})})
        if rule.reason is not None:
            return r + 1
    return None


@pytest.mark.parametrize(
    ("values", "stop", "rounds"),
    [
        ([0.1, 0.5, 0.9, 0.8], {"target": 0.9}, 3),
        ([0.1, 0.5, 0.6, 0.8], {"target": 0.9}, None),
        ([0.5, 0.4, 0.6, 0.6, 0.5, 0.7], {"patience": 2}, 5),  # equal is no improvement
        ([0.5, None, None, None, 0.4], {"patience": 2}, 5),  # seen when it is measured
        ([0.5, 0.4, 0.3], {"patience": 2, "mode": "min"}, None),
        ([0.5, 0.6, 0.95], {"patience": 1, "target": 0.55}, 2),
    ],
)
def test_a_rule_stops_at_a_target_or_after_rounds_without_a_new_best(values, stop, rounds):
    assert rounds_until(values, **stop) == rounds


def test_the_reason_names_the_value_its_round_and_the_limit():
    reached, stalled = (
        EarlyStop(StopConfig(metric="loss", target=0.5)),
        EarlyStop(StopConfig(metric="loss", patience=2)),
    )
    for r, value in enumerate([4.0, 0.25, 3.0, 0.25]):
        stalled.update({"round": r, "loss": value})
        if reached.reason is None:
            reached.update({"round": r, "loss": value})
    assert reached.reason == "loss = 0.25 reached stop.target = 0.5"
    assert stalled.reason == "loss has not improved on 0.25 of round 1 for 2 rounds"


def test_losses_are_better_when_lower():
    assert rounds_until([2.0, 1.0, 0.5], "test/loss", target=1.0) == 2
    assert rounds_until([2.0, 2.5, 2.5], "test/loss", patience=2) == 3


def test_a_stopped_run_is_finished_with_the_parameters_of_its_last_round(runs):
    whole = run(runs)
    target = whole.metrics[2]["test/loss"]  # falls from round to round
    stopped = run(runs, LOSS, f"stop.target={target!r}")
    short = run(runs, "rounds=3")
    assert len(stopped.metrics) == 3
    assert torch.equal(stopped.params, short.params)
    summary = json.loads((stopped.run_dir / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("finished", 3)
    assert "reached stop.target" in summary["stopped_early"]
    assert f"stopped early: {summary['stopped_early']}\n" in (stopped.run_dir / "log.txt").read_text()
    assert "stopped_early" not in json.loads((short.run_dir / "summary.json").read_text())


def test_a_stopped_run_stays_finished_when_resumed_and_continues_with_another_target(runs):
    whole = run(runs)
    stopped = run(runs, LOSS, f"stop.target={whole.metrics[2]['test/loss']!r}")
    again = raylfl.resume(stopped.run_dir)
    assert len(again.metrics) == 3
    further = raylfl.resume(stopped.run_dir, ["stop.target=0.0"])
    assert torch.equal(further.params, whole.params)


def test_a_metric_that_is_not_recorded_is_refused(runs):
    with pytest.raises(BadConfig, match=r"stop.metric=test/acc, but must be one of .*test/loss"):
        run(runs, "stop.metric=test/acc", "stop.patience=1")


def test_a_metric_may_be_absent_after_the_first_round_and_one_of_uploads_in_it():
    rule, of_uploads = (
        EarlyStop(StopConfig(metric=name, patience=1), {"f1": "max"}) for name in ("test/f1", "train/loss")
    )
    measured = {"round": 0, "test/loss": 1.0, "events": ["a line"], "per_client": {}, "cohort/sampled": 3}
    with pytest.raises(BadConfig, match=r"=test/f1, but must be one that is recorded: test/loss, cohort/sampled$"):
        rule.update(measured)
    rule.update({"round": 3, "test/loss": 1.0})  # the first round after a resume
    of_uploads.update({"round": 0, "test/loss": 1.0})
    assert rule.reason is None
    assert of_uploads.reason is None


@pytest.mark.parametrize("given", [{"metric": "test/loss"}, {"patience": 3}, {"target": 1.0}])
def test_a_rule_is_a_metric_with_a_target_or_a_patience(given):
    with pytest.raises(BadValue, match="metric="):
        StopConfig(**given)
