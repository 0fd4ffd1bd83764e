"""Tables of runs and settings: seeds pooled, the best first."""

import csv
import json

import numpy as np
import pytest
import yaml

from raylfl.cli import main
from raylfl.report.page import content_of
from raylfl.report.tables import best_settings
from raylfl.tune.journal import STOPPED, Journal, Trial, setting_rows, write_tables
from raylfl.tune.spec import load_sweep, shown_choices
from tests.tune.sweeps import write

SPACE = {"algorithm.name": {"grid": ["fedavg", "focus"]}, "local.lr": {"grid": [0.1, 0.2]}}


@pytest.fixture
def make(tmp_path):
    """A sweep directory with given curves, as if its trials had been run."""

    def build(curves, states=None, diverged=(), **changes):
        spec = load_sweep(write(tmp_path, **{"space": SPACE, "metric": "test/accuracy", "last": 2, **changes}))
        folder = tmp_path / "sweep"
        folder.mkdir()
        journal = Journal(folder)
        for setting, values in enumerate(spec.points()):
            runs = [f"{setting}-s{seed}" for seed in spec.seeds]
            trial = Trial(f"{setting:03d}", setting, spec.seeds, values, runs)
            journal.plan(trial)
            state = (states or {}).get(setting)
            for seed, name in zip(trial.seeds, trial.runs, strict=True):
                end = "diverged.txt" if (setting, seed) in diverged else "summary.json"
                run(folder / name, spec, values, seed, curves[setting, seed], None if state else end)
            if state:
                journal.end(trial.id, state)
        return spec, folder, journal

    def run(path, spec, values, seed, curve, end):
        path.mkdir()
        (path / "config.yaml").write_text(yaml.safe_dump(spec.config(values, seed, path.parent).resolved))
        if end is not None:
            (path / end).write_text("{}")
        rows = [{"round": r, spec.score.metric: value, "time/round": 0.5} for r, value in enumerate(curve)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return build


def read(path):
    with open(path) as file:
        return list(csv.DictReader(file))


CURVES = {  # (setting, seed): accuracy a round; settings: fedavg 0.1, fedavg 0.2, focus 0.1, focus 0.2
    (0, 0): [0.1, 0.7, 0.8], (0, 1): [0.1, 0.8, 0.9],
    (1, 0): [0.1, 0.7, 0.7], (1, 1): [0.1, 0.8, 0.9],
    (2, 0): [0.1, 0.2, 0.3], (2, 1): [0.1, 0.2, 0.4],
    (3, 0): [0.1, 0.1, 0.1], (3, 1): [0.1, 0.1, 0.1],
}  # fmt: skip


def test_settings_pool_their_seeds_and_the_best_comes_first(make):
    spec, folder, journal = make(CURVES, seeds=[0, 1])
    best = write_tables(spec, folder, journal)
    assert [group.trial.setting for group in best] == [0, 1, 2, 3]
    scores = [np.mean(CURVES[0, 0][1:]), np.mean(CURVES[0, 1][1:])]  # mean of the last two rounds
    row = read(folder / "settings.csv")[0]
    assert float(row["last:test/accuracy"]) == pytest.approx(np.mean(scores))
    assert float(row["std"]) == pytest.approx(np.std(scores, ddof=1))
    assert (row["algorithm.name"], row["local.lr"], row["seeds"], row["finished"]) == ("fedavg", "0.1", "2", "2")
    trials = read(folder / "runs.csv")
    assert [float(t["last:test/accuracy"]) for t in trials[:2]] == pytest.approx(scores)
    assert [t["state"] for t in trials] == ["finished"] * 8
    assert float(trials[0]["seconds"]) == 1.5


def test_a_setting_with_a_lost_seed_is_ranked_after_complete_ones(make):
    spec, folder, journal = make(CURVES, diverged=[(0, 1)], seeds=[0, 1])
    groups = setting_rows(spec, folder, journal)
    assert [group.trial.setting for group in groups] == [1, 2, 3, 0]
    assert groups[-1].score.mean == pytest.approx(0.75)  # score of the finished seed


def test_of_losses_a_setting_that_was_never_measured_comes_last(make):
    """Every loss is a negative score, because larger scores are better."""
    curves = {place: [2.0 + place[0]] * 3 for place in CURVES if place[1] == 0}
    states = dict.fromkeys(range(4), STOPPED)
    spec, folder, journal = make(curves, states, seeds=[0], metric="train/loss")
    empty = folder / "0-s0" / "metrics.jsonl"
    empty.write_text("".join(json.dumps({"round": r}) + "\n" for r in range(3)))
    assert [group.trial.setting for group in setting_rows(spec, folder, journal)] == [1, 2, 3, 0]


def test_what_a_scheduler_stopped_later_stands_before_what_it_stopped_early(make):
    curves = {**CURVES, (2, 0): [0.1], (3, 0): [0.1, 0.2], (1, 0): [0.9]}
    states = dict.fromkeys((1, 2, 3), STOPPED)
    spec, folder, journal = make(curves, states, seeds=[0])
    groups = setting_rows(spec, folder, journal)
    assert [group.trial.setting for group in groups] == [0, 3, 1, 2]


def test_fewer_rounds_to_the_target_are_better(make):
    spec, folder, journal = make(CURVES, seeds=[0, 1], score="target", target=0.8, last=None)
    groups = setting_rows(spec, folder, journal)
    assert groups[0].trial.setting == 0
    assert groups[0].score.mean == 2.5  # three rounds and two
    assert (groups[1].trial.setting, groups[1].score.count) == (1, 1)  # one of its seeds gets there


@pytest.mark.parametrize(("score", "first"), [("best", "0.2"), ("last", "0.1")])
def test_the_report_of_a_sweep_ranks_settings_by_the_sweeps_score(make, score, first):
    """fedavg with lr 0.2 has the best round, and lr 0.1 the better end; the last rounds are the sweep's two."""
    curves = {**CURVES, (1, 0): [0.1, 1.0, 0.3], (1, 1): [0.1, 1.0, 0.3]}
    spec, folder, journal = make(curves, seeds=[0, 1], score=score)
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"format": 2, **spec.content}))
    best = write_tables(spec, folder, journal)[0]
    content = content_of([folder], **shown_choices(folder))
    table = best_settings(content.parts, content.look.metric, content.look.last)
    (row,) = [row for row in table.rows if row["method"] == "FedAvg"]
    assert row["local.lr"] == str(best.trial.values["local.lr"]) == first
    assert row["last"].mean == pytest.approx(best.score.mean)
    assert content.summary(content.parts).columns[3].head.endswith("best" if score == "best" else "last 2")
    assert shown_choices(folder / "0-s0") == {}


@pytest.mark.parametrize(
    ("options", "metric", "target", "last"),
    [
        ([], "test/loss", None, 2),
        (["--target", "2.1"], "test/loss", 2.1, 2),
        (["--last", "1"], "test/loss", None, 1),
        (["--metric", "test/loss", "--target", "2.1"], "test/loss", 2.1, 2),
        (["--metric", "time/round", "--better", "min"], "time/round", None, None),
    ],
)
def test_options_of_a_report_replace_only_their_own_part_of_the_sweeps_score(
    make, monkeypatch, options, metric, target, last
):
    spec, folder, _ = make(CURVES, seeds=[0, 1], metric="test/loss")
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"format": 2, **spec.content}))
    shown = {}
    monkeypatch.setattr("raylfl.cli.commands._write_report", lambda paths, out, **choices: shown.update(choices))
    assert main(["report", str(folder), *options]) == 0
    assert (shown["metric"], shown["target"], shown["last"]) == (metric, target, last)
