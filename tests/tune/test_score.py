"""The scores of runs; a running trial is scored like a finished one."""

from __future__ import annotations

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
    from pathlib import Path

    return RunRecord(Path("run"), {"rounds": rounds or len(rows)}, at, metrics, {})


def rows(values, name="test/accuracy"):
    return [{"round": r} if v is None else {"round": r, name: v} for r, v in enumerate(values)]


def test_last_is_the_mean_over_the_last_k_rounds_not_evaluations():
    run = record(rows([0.1, None, 0.3, None, 0.5, 0.9]))
    assert Score("test/accuracy", "last", 2).of(run) == pytest.approx(0.7)
    assert Score("test/accuracy", "last", 4).of(run) == pytest.approx((0.3 + 0.5 + 0.9) / 3)
    assert Score("test/accuracy", "last", 6).of(run) == pytest.approx(np.mean([0.1, 0.3, 0.5, 0.9]))


def test_the_default_window_is_a_tenth_of_the_rounds():
    score = Score("test/accuracy", "last")
    assert [score.window(r) for r in (5, 10, 200, 4000)] == [1, 1, 20, 100]


def test_the_window_of_a_stopped_run_is_that_of_the_rounds_it_was_to_run():
    """The window is a tenth of 40 rounds, also for a run stopped after 8: settings are compared by equal windows."""
    stopped = record(rows([0.1 * r for r in range(8)]), rounds=40)
    assert Score("test/accuracy", "last").of(stopped) == pytest.approx(np.mean([0.4, 0.5, 0.6, 0.7]))


def test_best_and_target_use_the_better_direction_of_the_metric():
    accuracy, loss = record(rows([0.2, 0.8, 0.7])), record(rows([3.0, 1.0, 2.0], "train/loss"))
    assert Score("test/accuracy", "best").of(accuracy) == 0.8
    assert Score("train/loss", "best").of(loss) == 1.0
    assert Score("test/accuracy", "target", target=0.7).of(accuracy) == 2  # reached in row 1: after two rounds
    assert Score("train/loss", "target", target=1.5).of(loss) == 2
    assert Score("test/accuracy", "target", target=0.9).of(accuracy) is None


def test_ranks_put_fewer_rounds_and_smaller_losses_first():
    assert Score("test/accuracy", "last").ranked(0.9) > Score("test/accuracy", "last").ranked(0.8)
    assert Score("train/loss", "last").ranked(0.1) > Score("train/loss", "last").ranked(0.2)
    by_rounds = Score("test/accuracy", "target", target=0.5)
    assert by_rounds.ranked(10) > by_rounds.ranked(20) > by_rounds.ranked(None) == WORST


@given(
    values=st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=30),
    last=st.integers(1, 12),
    name=st.sampled_from(["test/accuracy", "train/loss"]),
)
def test_a_running_run_has_the_score_that_it_would_have_if_it_ended_now(values, last, name):
    """The schedulers' score is the oriented score of the rows so far, computed by the report's own functions."""
    all_rows = rows(values, name)
    for mode in ("last", "best"):
        score = Score(name, mode, last)
        running = RunningScore(score, rounds=len(values))
        for r, row in enumerate(all_rows):
            now, then = running.update(row), score.of(record(all_rows[: r + 1], len(values)))
            assert (now is None) == (then is None)
            if now is not None:
                assert now == pytest.approx(score.ranked(then))


def test_on_the_way_to_a_target_the_nearest_so_far_counts():
    running = RunningScore(Score("train/loss", "target", target=0.1), 5)
    assert [running.update(row) for row in rows([3.0, 1.0, 2.0], "train/loss")] == [-3.0, -1.0, -1.0]


@pytest.mark.parametrize("options", [("worst",), ("last", 0), ("target",), ("last", 3, 0.5)])
def test_an_impossible_score_is_refused(options):
    with pytest.raises(BadConfig):
        Score("test/accuracy", *options)
