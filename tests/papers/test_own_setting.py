"""A run is published to a cell only if its whole config is the one that the experiment gives that cell."""

import json
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from papers import ledger
from papers.base import Findings, find, plain
from papers.grid import Grid, Point
from papers.publish import differences, publish
from papers.run_cache import RunCache, config_digest, set_keys
from raylfl.config.identity import fingerprint_of_config, flatten
from raylfl.errors import BadConfig
from raylfl.execution.store import words_of
from raylfl.report.runs import load_run

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = sorted(
    path.parent.relative_to(ROOT / "results").as_posix() for path in (ROOT / "results").rglob(ledger.ROWS)
)
TABLE10 = {"task": "MNIST, logistic", "classes": 1, "steps": 5, "method": "PFL", "lr": 0.1, "clip": 10.0}
TABLE1 = {"pixels": "standardised", "partition": "IID", "fraction": 0.1, "lr": 0.1}
SUMMARY = {"versions": {"raylfl": "0.1.0", "torch": "2"}, "host": {"cpu": "c", "cpus": 2}, "wall_seconds": 1.0}


def config_of(name, cell, **options):
    """The config of a run of this cell, with other values of some dotted keys."""
    (own,) = (s for s in settings_of(name) if s.cell == cell)
    seed = find(name).seeds[0]
    return set_keys(RunCache(Path("x"), "paper").config_of(own, seed), options)


@cache
def settings_of(name):
    """The settings of all points of an experiment."""
    experiment = find(name)
    scale = "paper" if experiment.scales else "smoke"
    return [experiment.setting(point, scale) for point in experiment.points(scale)]


def folder_of(name, cell):
    """The first part of the name of a run of this cell."""
    (own,) = (s for s in settings_of(name) if s.cell == cell)
    return words_of(own.label)


def run_of_table_10(folder, summary=None, **options):
    """A finished run of the cell TABLE10 with other values of some keys of its config and summary."""
    name = "sfl/table10"
    return made_run(folder, config_of(name, TABLE10, **options), folder_of(name, TABLE10), **(summary or {}))


def made_run(folder, config, name, **summary):
    """The records of a finished run with this config, without the run."""
    path = folder / f"{name}-s{config['seed']}-{config_digest(config)}"
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [{"round": r, "test/accuracy": 0.9, "time/round": 0.5} for r in range(config["rounds"])]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {"git_commit": "c0ffee", "config_sha256": fingerprint_of_config(config), "params_sha256": "ab" * 32}
    (path / "summary.json").write_text(json.dumps(SUMMARY | facts | summary))
    return path


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr("papers.sfl_grid.log_of", lambda cell, rounds: None)  # the logs may be missing
    return {"results": tmp_path / "results", "docs": tmp_path / "docs"}


@pytest.mark.parametrize(
    ("name", "cell", "key", "value"),
    [
        ("sfl/table10", TABLE10, "num_clients", 50),
        ("sfl/table10", TABLE10, "local.batch_size", 5),
        ("sfl/table10", TABLE10, "rounds", 600),
        ("sfl/table10", TABLE10, "local.lr", 0.05),
        ("sfl/table10", TABLE10, "eval.every", 20),
        ("sfl/table10", TABLE10, "participation.size", 20),
        ("sfl/table10", TABLE10, "runtime.precision", "bf16-mixed"),
        ("sfl/table11", TABLE10, "partition.alpha", 1.0),
        ("fedavg/table1", TABLE1, "local.batch_size", 50),
        ("fedavg/table1", TABLE1, "stop.target", 0.9),
        ("fedavg/table1", TABLE1, "data.name", "fashion_mnist"),
    ],
)
def test_a_run_with_another_value_is_refused_with_the_key_and_both_values(name, cell, key, value, places, tmp_path):
    right = flatten(config_of(name, cell))[key]
    path = made_run(tmp_path, config_of(name, cell, **{key: value}), folder_of(name, cell))
    expected = rf"{key}={value} in place of {'null' if right is None else right}.*raylfl reproduce {name}"
    with pytest.raises(BadConfig, match=expected):
        publish([str(path)], name, **places)
    assert not places["results"].exists()


@pytest.mark.parametrize(("name", "cell"), [("sfl/table10", TABLE10), ("fedavg/table1", TABLE1)])
def test_place_of_data_machine_name_and_checkpoints_may_differ(name, cell):
    other = {"data.init_args.root": "/elsewhere", "data.init_args.download": True, "runtime.threads": 2, "name": "x"}
    other |= {"checkpoint.every": 7, "runtime.backend": "ray", "seed": 3, "model.init_args.num_classes": 10}
    assert differences(set_keys(config_of(name, cell), other), config_of(name, cell)) == []


def test_a_run_with_another_setting_leaves_the_row_of_the_cell_as_it_is(places, tmp_path):
    runs = tmp_path / "runs/reproduce/sfl/images/paper/runs"
    right = run_of_table_10(runs)
    publish(["sfl/table10"], **places)
    (before,) = ledger.read(places["results"] / "sfl/table10")
    wrong = run_of_table_10(runs, num_clients=50, rounds=600)
    lines = []
    publish(["sfl/table10"], **places, tell=lines.append)
    assert ledger.read(places["results"] / "sfl/table10") == [before]
    assert before.digest == ledger.named_digest(load_run(right))
    (line,) = [line for line in lines if line.startswith("left out")]
    assert wrong.name in line
    assert "num_clients=50 in place of 500" in line
    assert "rounds=600 in place of 1000" in line


class Together(Grid):
    """An experiment of one run."""

    scales, base = (), ("reproduce/sfl_fig1",)
    options: ClassVar = {"rounds": 4}
    axes: ClassVar = {"run": {"toy": {}}}

    def run(self, cache):
        self.groups(cache)
        return Findings()


def test_runs_that_are_not_of_the_grid_get_no_row(places, tmp_path, monkeypatch):
    monkeypatch.setattr("papers.publish.find", lambda name: Together())
    runs = tmp_path / "runs/reproduce/theory/toy/runs"
    config = RunCache(runs, "smoke").config_of(Together().setting(Point(run="toy"), "smoke"), 0)
    made_run(runs, set_keys(config, {"local.lr": 0.3}), "toy")
    with pytest.raises(BadConfig, match=r"local\.lr=0\.3 in place of 0\.1"):
        publish(["theory/toy"], **places)
    made_run(runs, config, "toy")
    made_run(runs, config | {"seed": 7}, "toy")
    made_run(runs, config, "other")
    lines = []
    publish(["theory/toy"], **places, tell=lines.append)
    (row,) = ledger.read(places["results"] / "theory/toy")
    assert (row.cell, row.seed) == ({"run": "toy"}, 0)
    refused = [line for line in lines if line.startswith("left out")]
    assert len(refused) == 2  # a run with another name is one of another experiment
    assert sum("local.lr=0.3 in place of 0.1" in line for line in refused) == 1
    assert sum("seed=7 is none of 0" in line for line in refused) == 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_of_the_committed_ledger_is_of_a_point_of_the_grid_and_of_a_commit_without_changes(name):
    def values(cell):
        return sorted((axis, plain(value)) for axis, value in cell.items())

    cells = [values(own.cell) for own in settings_of(name)]
    for row in ledger.read(ROOT / "results" / name):
        assert values(row.cell) in cells
        assert row.seed in find(name).seeds
        assert row.commit
        assert "changes" not in row.commit
        assert row.machine["cpu"]


@pytest.mark.parametrize(
    ("edit", "summary", "message"),
    [
        (lambda c: c["local"].pop("clip_norm"), {}, "not that of its name"),
        (lambda c: None, {"git_commit": None}, "no record of its commit.*git checkout"),
        (lambda c: None, {"name": "renamed", "config_sha256": "0"}, "no digest of its config.*first name"),
    ],
)
def test_a_run_of_unknown_origin_is_refused_with_a_remedy(edit, summary, message, places, tmp_path):
    path = run_of_table_10(tmp_path, {k: v for k, v in summary.items() if k != "name"})
    config = yaml.safe_load((path / "config.yaml").read_text())
    edit(config)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    if "name" in summary:
        path = path.rename(tmp_path / summary["name"])
    with pytest.raises(BadConfig, match=message):
        publish([str(path)], "sfl/table10", **places)


def test_a_renamed_run_with_its_own_config_is_published(places, tmp_path):
    name, cell = "audit/scaffold-classes", {"method": "fedavg"}
    path = made_run(tmp_path, config_of(name, cell), folder_of(name, cell)).rename(tmp_path / "renamed")
    publish([str(path)], name, **places)
    assert [row.cell for row in ledger.read(places["results"] / name)] == [cell]


def test_seconds_count_the_rounds_before_a_resumption(tmp_path):
    run = load_run(run_of_table_10(tmp_path, {"wall_seconds": 60.0}))
    assert ledger.row(run, {}, "").seconds == 500.0  # 1,000 rounds of half a second
