"""The scores of runs; a running trial is scored like a finished one."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.errors import BadConfig
from raylfl.report.runs import RunRecord, _columns
from raylfl.tune.score import WORST, RunningScore, Score


def record(rows, rounds=None):
    """A run whose metrics.jsonl has these rows."""
    at, metrics = _columns(rows)
    return RunRecord(Path("run"), {"rounds": rounds or len(rows)}, at, metrics, {})


def rows(values, name="test/accuracy"):
    return [{"round": r} if v is None else {"round": r, name: v} for r, v in enumerate(values)]


def score(metric="test/accuracy", how="last", last=None, target=None, mode=None):
    made = Score(metric, mode, how, last, target)
    made.set_mode({})
    return made


def test_last_is_the_mean_over_the_last_k_rounds_not_evaluations():
    run = record(rows([0.1, None, 0.3, None, 0.5, 0.9]))
    assert score(last=2).of(run) == pytest.approx(0.7)
    assert score(last=4).of(run) == pytest.approx((0.3 + 0.5 + 0.9) / 3)
    assert score(last=6).of(run) == pytest.approx(np.mean([0.1, 0.3, 0.5, 0.9]))


def test_the_window_is_a_tenth_of_the_planned_rounds():
    assert [score().window(n) for n in (1, 5, 40, 400, 4000)] == [1, 1, 4, 40, 100]
    run = record(rows([0.1 * r for r in range(40)]))
    assert score().of(run) == pytest.approx(np.mean([3.6, 3.7, 3.8, 3.9]))
    # a run of 40 rounds stopped after 8: settings are compared by equal windows
    stopped = record(rows([0.1 * r for r in range(8)]), rounds=40)
    assert score().of(stopped) == pytest.approx(np.mean([0.4, 0.5, 0.6, 0.7]))


def test_best_and_target_use_the_direction_of_the_metric():
    accuracy, loss = record(rows([0.2, 0.8, 0.7])), record(rows([3.0, 1.0, 2.0], "train/loss"))
    assert score(how="best").of(accuracy) == 0.8
    assert score(how="best", mode="min").of(accuracy) == 0.2
    assert score("train/loss", "best").of(loss) == 1.0
    assert score(how="target", target=0.7).of(accuracy) == 2  # reached in row 1: after two rounds
    assert score("train/loss", "target", target=1.5).of(loss) == 2
    assert score(how="target", target=0.9).of(accuracy) is None


@pytest.mark.parametrize("metric", ["test/dice_loss", "test/map50", "val/f1", "test/accuracy_loss"])
def test_the_direction_of_a_metric_is_asked_and_never_guessed(metric):
    with pytest.raises(BadConfig, match=rf"^mode=None, but must be min or max .*{metric}"):
        score(metric)
    assert [score(metric, mode=mode).direction for mode in ("min", "max")] == ["min", "max"]
    stated = Score(metric)
    stated.set_mode({metric: "max"})
    assert stated.direction == "max"
    with pytest.raises(BadConfig, match=f"mode=min, but must be max, as metrics.{metric} states"):
        Score(metric, "min").set_mode({metric: "max"})


def test_fewer_rounds_and_smaller_losses_are_better():
    found = [score(), score("train/loss"), score(how="target", target=0.5)]
    assert [(each.direction, each.worst) for each in found] == [("max", -WORST), ("min", WORST), ("min", WORST)]


@given(
    values=st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=30),
    last=st.integers(1, 12),
    mode=st.sampled_from(["min", "max"]),
)
def test_a_running_run_has_the_score_that_it_would_have_if_it_ended_now(values, last, mode):
    """Of runs that have not reached the target, the nearer one is better, and both are behind those that have."""
    all_rows = rows(values)
    for how, target in (("last", None), ("best", None), ("target", 0.5)):
        each = score(how=how, last=last, target=target, mode=mode)
        running = RunningScore(each, rounds=len(values))
        for r, row in enumerate(all_rows):
            now, then = running.update(row), each.of(record(all_rows[: r + 1], len(values)))
            if then is not None:
                assert now == pytest.approx(then)
            else:
                assert now is None or (how == "target" and now > len(values))


def test_on_the_way_to_a_target_the_nearest_so_far_counts():
    running = RunningScore(score("train/loss", "target", target=0.1), 5)
    assert [running.update(row) for row in rows([3.0, 1.0, 2.0], "train/loss")] == pytest.approx([8.9, 6.9, 6.9])


@pytest.mark.parametrize(
    "options",
    [
        {"how": "worst"},
        {"last": 0},
        {"how": "target"},
        {"target": 0.5},
        {"mode": "up"},
        {"how": "target", "target": 95.0},
    ],
)
def test_an_impossible_score_is_refused(options):
    with pytest.raises(BadConfig):
        score(**options)
