"""Run directories read back: columns, damage, search, pooling."""

import json

import numpy as np
import pytest
import yaml

from raylfl.errors import BadValue
from raylfl.report.runs import find_runs, group_runs, load_run
from tests.report.synthetic import groups_of, rows_of, write_run


def test_rows_become_columns_and_the_rest_is_read(tmp_path):
    run = load_run(write_run(tmp_path / "a", rows_of(accuracy=[0.1, 0.4, 0.3]), {"seed": 7}))
    assert run.rounds.tolist() == [0, 1, 2]
    assert run.metrics["test/accuracy"].tolist() == [0.1, 0.4, 0.3]
    assert run.metrics["cost/uplink_floats"].tolist() == [1000, 2000, 3000]
    assert "round" not in run.metrics
    assert run.seed == 7
    assert run.finished
    assert run.summary["git_commit"] == "abc1234"
    assert [row["round"] for row in run.participation] == [0, 1, 2]
    classes, counts = run.partition_counts
    assert classes == [str(c) for c in range(10)]
    assert counts.shape == (8, 10)


def test_an_absent_metric_is_nan_and_a_diverged_one_is_infinite(tmp_path):
    rows = [{"round": 0, "a": 1.0}, {"round": 1}, {"round": 2, "a": float("nan")}, {"round": 3, "a": None}]
    run = load_run(write_run(tmp_path / "a", [*rows, {"round": 4, "a": float("-inf")}]))
    np.testing.assert_array_equal(run.column("a"), [1.0, np.nan, np.inf, np.nan, np.inf])
    assert np.isnan(run.column("never")).all()
    assert run.measured("a")
    assert not run.measured("never")


def test_a_truncated_line_is_left_out_and_a_damaged_one_is_reported(tmp_path):
    path = write_run(tmp_path / "a", rows_of(accuracy=[0.1, 0.2, 0.3]), finished=False)
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text[: len(text) - 40])
    run = load_run(path)
    assert run.rounds.tolist() == [0, 1]
    assert run.faults == []  # as a running or killed run leaves it
    assert not run.finished
    (path / "metrics.jsonl").write_text(text.replace('"round": 1', '"round" 1'))
    assert load_run(path).faults == ["metrics.jsonl: line 2 cannot be read"]


def test_of_a_round_written_twice_the_later_row_holds(tmp_path):
    rows = [{"round": 0, "a": 1}, {"round": 1, "a": 2}, {"round": 1, "a": 5}, {"round": 2, "a": 3}]
    run = load_run(write_run(tmp_path / "a", rows))
    assert run.column("a").tolist() == [1, 5, 3]


def test_a_summary_that_is_being_written_makes_no_run_unreadable(tmp_path):
    path = write_run(tmp_path / "a", rows_of(accuracy=[0.1]))
    (path / "summary.json").write_text('{"final": {')
    assert not load_run(path).finished


def test_runs_are_found_at_any_depth_each_once(tmp_path):
    for name in ("sweep/trial_1/run", "sweep/trial_2/run", "alone", "sweep/.hidden/run"):
        write_run(tmp_path / name, rows_of(accuracy=[0.1]))
    (tmp_path / "alone" / "checkpoints").mkdir()
    found = find_runs([tmp_path, tmp_path / "alone"])
    assert found == [tmp_path / "alone", tmp_path / "sweep/trial_1/run", tmp_path / "sweep/trial_2/run"]
    assert find_runs(str(tmp_path / "alone")) == [tmp_path / "alone"]


@pytest.mark.parametrize("name", ["empty", "nowhere"])
def test_a_path_without_runs_is_refused_by_name(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadValue, match=name):
        find_runs([tmp_path / name])
    with pytest.raises(BadValue, match=name):
        load_run(tmp_path / name)


def test_seeds_of_one_setting_are_pooled_and_settings_are_not(tmp_path):
    changes = [
        {"seed": 1, "name": "x", "runtime.workers": 4},
        {"seed": 0, "logging.loggers": []},
        {"seed": 0, "local.lr": 0.01},
        {"seed": 0, "algorithm.name": "focus"},
    ]
    groups = groups_of(tmp_path, *((rows_of([0.1]), change) for change in changes))
    assert [(g.label, [run.seed for run in g.runs]) for g in groups] == [
        ("FedAvg, lr=0.01", [0]),
        ("FedAvg, lr=0.1", [0, 1]),
        ("FOCUS", [0]),
    ]


def test_a_whole_number_written_as_float_is_the_same_setting(tmp_path):
    changes = ({"seed": 0, "partition.alpha": 1}, {"seed": 1, "partition.alpha": 1.0})
    assert len(groups_of(tmp_path, *((rows_of([0.1]), change) for change in changes))) == 1


def test_of_two_runs_of_one_seed_the_longer_counts(tmp_path):
    short = load_run(write_run(tmp_path / "b", rows_of([0.1])))
    long = load_run(write_run(tmp_path / "a", rows_of([0.1, 0.2])))
    (group,) = group_runs([long, short])
    assert group.runs == [long]


def test_groups_come_by_world_then_method_then_tuned_value_in_numeric_order(tmp_path):
    names = [(alpha, name, lr) for alpha in (10.0, 2.0) for name in ("sfl", "fedavg") for lr in (0.1, 0.02)]
    keys = ("partition.alpha", "algorithm.name", "local.lr")
    groups = groups_of(tmp_path, *((rows_of([0.1]), dict(zip(keys, own, strict=True))) for own in names))
    assert [tuple(g.setting[key] for key in keys) for g in groups] == sorted(names)


def test_the_number_of_clients_comes_from_the_partition_where_the_config_leaves_it_open(tmp_path):
    path = write_run(tmp_path / "a", rows_of([0.1, 0.2]))
    config = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(config | {"num_clients": None}))
    assert load_run(path).clients == 8
    (path / "partition_counts.json").unlink()
    rows = [{"round": 0, "cohort": [], "draws": [], "received": [], "steps": []}]
    rows += [{"round": 1, "cohort": [2, 5], "draws": [1, 1], "received": [True, False], "steps": [3, 3]}]
    (path / "participation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load_run(path).clients == 6


def test_participation_may_end_in_a_cut_line(tmp_path):
    path = write_run(tmp_path / "a", rows_of([0.1, 0.2]))
    with (path / "participation.jsonl").open("a") as file:
        file.write(json.dumps({"round": 2, "cohort": [1]})[:12])
    assert len(load_run(path).participation) == 2
