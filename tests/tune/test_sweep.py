"""Sweeps on Ray Tune: schedulers, failures, resources. One small cluster for the whole file.

The longest tests run with `make test ARGS="-m cluster"` only.
"""

import csv
import json
import signal
import sys
from pathlib import Path

import pytest
import ray
import torch

import raylfl
from raylfl.errors import BadConfig, RaylflError
from raylfl.tune.sweep import resume, sweep
from tests.runtime.clusters import QUIET, SMALL, lean_ray
from tests.tune.sweeps import QUADRATICS, folder_of, params, plain, write

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two CPUs that serves all sweeps, each of which would otherwise start its own."""
    with lean_ray():
        ray.init("local", num_cpus=2, **SMALL, **QUIET)
    yield
    ray.shutdown()


def carry_out(folder, **changes):
    """(result, lines said) of a sweep over QUADRATICS with these changes."""
    said: list[str] = []
    path = write(folder, **{"logging": {"dir": str(folder / "runs")}, **changes})
    return sweep(path, [], said.append), said


def table(folder):
    with open(folder / "runs.csv") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


@pytest.mark.exhaustive
def test_deaths_are_retried_from_the_checkpoint_and_divergence_is_not(cluster, tmp_path):
    marker = tmp_path / "died"
    mortal = {"after": str(tmp_path / "runs/*/*-s0-*/checkpoints/round_*"), "marker": str(marker)}
    result, said = carry_out(
        tmp_path,
        model={"name": None, "class_path": "tests.tune.modules.Mortal"},
        seeds=[0, 1],
        concurrent=1,
        space={"local.lr": {"grid": [0.1, 1e200]}, "model.init_args": {"grid": [mortal], "when": {"local.lr": 0.1}}},
    )
    assert marker.exists()
    assert [row["state"] for row in table(result.folder).values()] == ["finished"] * 2 + ["diverged"] * 2
    assert result.failed == {}
    assert sum("tried again" in line for line in said) == 1
    assert "resumed at round 2" in (folder_of(result.folder, 0) / "log.txt").read_text()
    assert torch.equal(params(folder_of(result.folder, 0)), plain(tmp_path).params)
    assert [group.trial.setting for group in result.settings] == [0, 1]
    assert result.settings[0].finished_runs == 2


@pytest.mark.exhaustive
def test_what_keeps_failing_ends_alone_and_is_tried_again_by_a_resumed_sweep(cluster, tmp_path):
    gone = tmp_path / "trace.jsonl"
    participation = {"participation": {"grid": [{"name": "full"}, {"name": "trace", "path": str(gone)}]}}
    row = {"cohort": [0, 1], "draws": [1, 1], "received": [True, True], "steps": [3, 3]}
    rows = [json.dumps({"round": r, **row}) for r in range(6)]
    gone.write_text("\n".join(rows) + "\n")

    def vanish(line):
        if "settings at once" in line:  # after the settings were checked, before the trials read it
            gone.unlink()

    path = write(tmp_path, logging={"dir": str(tmp_path / "runs")}, space=participation, concurrent=1)
    result = sweep(path, [], vanish)
    assert list(result.failed) == ["001-fedavg"]
    assert str(gone) in result.failed["001-fedavg"]
    before = (folder_of(result.folder, 0) / "final.pt").stat().st_mtime_ns
    gone.write_text("\n".join(rows) + "\n")
    again = resume(result.folder, ["retries=0"], lambda line: None)
    assert again.failed == {}
    assert {row["state"] for row in table(again.folder).values()} == {"finished"}
    assert (folder_of(result.folder, 0) / "final.pt").stat().st_mtime_ns == before


@pytest.mark.exhaustive
def test_asha_judges_settings_by_their_means_and_the_second_asking_costs_nothing(cluster, tmp_path, monkeypatch):
    """A process for each of the two seeds. The bits are a plain run's. Relative paths are those of the sweep's folder,
    though Ray was started elsewhere.
    """
    monkeypatch.chdir(plain(tmp_path, "rounds=4").run_dir)
    replayed = {"name": "trace", "path": "participation.jsonl"}
    changes = {
        "participation": replayed,
        "rounds": 4,
        "concurrent": 1,
        "seeds": [0, 1],
        "space": {"local.lr": {"grid": [0.1, 0.001]}},
        "scheduler": {"name": "asha", "grace": 2, "reduction": 4},
    }
    result, said = carry_out(tmp_path, **changes)
    assert "settings at once 1, processes 2 each" in said[0]
    ends = [(row["setting"], row["state"], row["rounds"]) for row in table(result.folder).values()]
    assert ends == [("0", "finished", "4")] * 2 + [("1", "stopped", "2")] * 2
    assert [row.score.count for row in result.settings] == [2, 2]
    for seed in range(2):
        run = folder_of(result.folder, 0, seed)
        assert torch.equal(params(run), plain(tmp_path, "rounds=4", f"seed={seed}").params)
    written = (folder_of(result.folder, 0) / "final.pt").stat().st_mtime_ns
    again, said = carry_out(tmp_path, **changes)
    assert len(said) == 1  # no trial
    assert table(again.folder) == table(result.folder)
    assert (folder_of(again.folder, 0) / "final.pt").stat().st_mtime_ns == written


def test_impossible_resources_are_refused_before_anything_is_written(cluster, tmp_path):
    with pytest.raises(BadConfig, match=r"needs 5 x 1 CPUs = 5.*has 2 CPUs"):
        carry_out(tmp_path, runtime={"backend": "ray", "workers": 5})
    assert not (tmp_path / "runs").exists()


def test_optuna_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadConfig, match=r"search=optuna needs the package optuna: pip install 'optuna>=4'"):
        carry_out(tmp_path, search="optuna", space={"local.lr": {"uniform": [0.01, 0.1]}})
    assert not (tmp_path / "runs").exists()


def test_optuna_tunes_each_cell_of_the_grids_and_a_resumed_search_goes_on(cluster, tmp_path):
    """Two cells with a setting each, interrupted after the first."""
    pytest.importorskip("optuna")
    interrupted = signal.getsignal(signal.SIGINT)
    space = {"algorithm.name": {"grid": ["fedavg", "fedavgm"]}, "local.lr": {"uniform": [0.01, 0.1]}}
    said: list[str] = []

    def interrupt(line):
        said.append(line)
        if line.startswith("[1/2]"):
            signal.raise_signal(signal.SIGINT)  # Ctrl-C

    runs = {"logging": {"dir": str(tmp_path / "runs")}, "rounds": 2, "concurrent": 1}
    with pytest.raises(RaylflError, match="stopped: raylfl sweep --resume"):
        sweep(write(tmp_path, search="optuna", space=space, **runs), [], interrupt)
    (folder,) = (tmp_path / "runs").iterdir()
    first = [row for row in table(folder).values() if row["state"] == "finished"]
    result = resume(folder, [], said.append)
    assert signal.getsignal(signal.SIGINT) is interrupted
    rows = table(folder).values()
    assert [row["state"] for row in rows] == ["finished"] * 2
    assert [row for row in rows if row in first] == first
    assert len({row["local.lr"] for row in rows}) == 2
    assert sorted(row.trial.values["algorithm.name"] for row in result.settings) == ["fedavg", "fedavgm"]


@pytest.mark.exhaustive
def test_a_run_is_a_trial_of_a_users_tuner(cluster, tmp_path):
    """Ray Tune's own Tuner, on the Ray of the calling program, with a class that only this function knows."""
    from ray import tune

    from tests.runtime.modules import Quadratic

    class Mine(Quadratic):
        pass

    config = {k: v for k, v in QUADRATICS.items() if k not in ("space", "metric")} | {"rounds": 2}
    trial = raylfl.trainable(config, [f"logging.dir={tmp_path}/runs"], model=Mine)
    kept = tune.RunConfig(storage_path=str(tmp_path / "tune"), verbose=0)
    results = tune.Tuner(trial, param_space={"local.lr": tune.grid_search([0.1, 0.01])}, run_config=kept).fit()
    assert results.errors == []
    best = results.get_best_result("global/distance", "min")
    assert (best.config, len(best.metrics_dataframe)) == ({"local.lr": 0.1}, 2)
    for result in results:
        twin = plain(tmp_path, "rounds=2", f"local.lr={result.config['local.lr']}")
        assert result.metrics["global/distance"] == twin.metrics[-1]["global/distance"]
        assert torch.equal(params(Path(result.metrics["run_dir"])), twin.params)
