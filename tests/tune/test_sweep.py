"""Sweeps on Ray Tune: schedulers, failures, resources. One small cluster for the whole file.

The longest tests run with `make test ARGS="-m cluster"` only.
"""

from __future__ import annotations

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
from tests.tune.sweeps import QUADRATICS, write

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


def params(folder):
    return torch.load(folder / "final.pt", weights_only=True)["params"]


def plain(folder, *overrides):
    config = {k: v for k, v in QUADRATICS.items() if k not in ("space", "metric")}
    place = [f"logging.dir={folder}/plain", "logging.report=false"]
    return raylfl.run(config, [*place, "runtime.backend=local", *overrides])


def test_relative_paths_of_a_config_refer_to_the_working_directory_of_the_sweep(cluster, tmp_path, monkeypatch):
    run_dir = plain(tmp_path, "rounds=2").run_dir
    monkeypatch.chdir(run_dir)  # Ray was started elsewhere
    replayed = {"name": "trace", "path": "participation.jsonl"}
    result, _ = carry_out(tmp_path, rounds=2, participation=replayed, space={"local.lr": {"grid": [0.1]}})
    assert torch.equal(params(result.folder / "000-fedavg-s0"), params(run_dir))


@pytest.mark.exhaustive
def test_two_trials_of_two_workers_share_two_cpus(cluster, tmp_path):
    """Four workers hold half a CPU each; the bits of one process; the Ctrl-C handler is restored."""
    interrupted = signal.getsignal(signal.SIGINT)
    result, said = carry_out(
        tmp_path, rounds=3, runtime={"backend": "ray", "workers": 2, "cpus_per_worker": 0.5}, concurrent=2
    )
    assert signal.getsignal(signal.SIGINT) is interrupted
    assert "2 settings x 1 seed of 3 rounds, 2 settings at once, each 1 server + 2 workers" in said[0]
    for trial, lr in (("000-fedavg-s0", 0.1), ("001-fedavg-s0", 0.01)):
        summary = json.loads((result.folder / trial / "summary.json").read_text())
        assert summary["runtime"]["workers"] == 2
        assert torch.equal(params(result.folder / trial), plain(tmp_path, "rounds=3", f"local.lr={lr}").params)
    assert [group.setting for group in result.settings] == [0, 1]  # the larger step is nearer after three rounds


@pytest.mark.exhaustive
def test_a_whole_run_stays_inside_the_placement_group_of_its_caller(cluster, tmp_path):
    """The group holds all CPUs, so that nothing could start outside of it."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1.0}, {"CPU": 1.0}])
    ray.get(group.ready())

    @ray.remote(num_cpus=1)
    def caller(folder):
        config = {k: v for k, v in QUADRATICS.items() if k not in ("space", "metric")}
        overrides = [f"logging.dir={folder}", "runtime.backend=ray", "rounds=2", "logging.report=false"]
        return json.loads((raylfl.run(config, overrides).run_dir / "summary.json").read_text())["runtime"]["workers"]

    inside = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    assert ray.get(caller.options(scheduling_strategy=inside).remote(str(tmp_path)), timeout=120) == 1
    remove_placement_group(group)


@pytest.mark.exhaustive
def test_deaths_are_retried_from_the_checkpoint_and_divergence_is_not(cluster, tmp_path):
    marker = tmp_path / "died"
    mortal = {"after": str(tmp_path / "runs/*/000-*-s0/checkpoints/round_*"), "marker": str(marker)}
    result, said = carry_out(
        tmp_path,
        model={"name": None, "class_path": "tests.tune.modules.Mortal"},
        seeds=[0, 1],
        concurrent=1,
        space={
            "local.lr": {"grid": [0.1, 1e200]},
            "model.init_args": {"grid": [mortal], "when": {"local.lr": 0.1}},
        },
    )
    assert marker.exists()
    states = {trial: row["state"] for trial, row in table(result.folder).items()}
    assert states == {
        "000-fedavg-s0": "finished",
        "000-fedavg-s1": "finished",
        "001-fedavg-s0": "diverged",
        "001-fedavg-s1": "diverged",
    }
    assert result.failed == {}
    assert sum("tried again" in line for line in said) == 1
    assert "resumed at round 2" in (result.folder / "000-fedavg-s0" / "log.txt").read_text()
    assert torch.equal(params(result.folder / "000-fedavg-s0"), plain(tmp_path).params)
    assert [group.setting for group in result.settings] == [0, 1]
    assert result.settings[0].finished_runs == 2


@pytest.mark.exhaustive
def test_what_keeps_failing_ends_alone_and_is_tried_again_by_a_resumed_sweep(cluster, tmp_path):
    gone = tmp_path / "trace.jsonl"
    participation = {"participation": {"grid": [{"name": "full"}, {"name": "trace", "path": str(gone)}]}}
    row = {"cohort": [0, 1], "draws": [1, 1], "received": [True, True], "steps": [3, 3]}
    rows = [json.dumps({"round": r, **row}) for r in range(6)]
    gone.write_text("\n".join(rows) + "\n")

    def vanish(line):
        if "settings x" in line:  # after the settings were checked, before the trials read it
            gone.unlink()

    path = write(tmp_path, logging={"dir": str(tmp_path / "runs")}, space=participation, concurrent=1)
    result = sweep(path, [], vanish)
    assert list(result.failed) == ["001-fedavg"]
    assert str(gone) in result.failed["001-fedavg"]
    before = (result.folder / "000-fedavg-s0" / "final.pt").stat().st_mtime_ns
    gone.write_text("\n".join(rows) + "\n")
    again = resume(result.folder, ["retries=0"], lambda line: None)
    assert again.failed == {}
    assert {row["state"] for row in table(again.folder).values()} == {"finished"}
    assert (result.folder / "000-fedavg-s0" / "final.pt").stat().st_mtime_ns == before


@pytest.mark.exhaustive  # of the decisions see test_schedulers.py, of trials that are stopped the next test
def test_asha_stops_worse_settings_and_never_a_harder_scenario(cluster, tmp_path):
    """fedavg descends faster with larger steps; of each algorithm one setting in three continues after two rounds."""
    result, _ = carry_out(
        tmp_path,
        rounds=18,
        concurrent=1,
        space={
            "algorithm.name": {"grid": ["fedavg", "fedavgm"]},
            "algorithm.gamma": {"grid": [0.001], "when": {"algorithm.name": "fedavgm"}},  # the slower one
            "local.lr": {"grid": [0.1, 0.03, 0.01, 0.003]},
        },
        scheduler={"name": "asha", "grace": 2, "reduction": 3},
    )
    rows = table(result.folder)
    for name in ("fedavg", "fedavgm"):
        own = [row for row in rows.values() if row["algorithm.name"] == name]
        assert [(row["state"], row["rounds"]) for row in own] == [("finished", "18")] + [("stopped", "2")] * 3
    stopped = result.folder / "001-fedavg-s0"
    assert not (stopped / "summary.json").exists()
    longer = raylfl.resume(stopped)  # a run that a scheduler stopped can be resumed by hand
    assert torch.equal(longer.params, plain(tmp_path, "rounds=18", "local.lr=0.03").params)


@pytest.mark.parametrize("concurrent", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_asha_judges_a_setting_by_the_mean_of_its_seeds(cluster, tmp_path, concurrent):
    """One setting at once: two processes for its three seeds; two at once: one each. The bits are a plain run's."""
    result, said = carry_out(
        tmp_path,
        rounds=8,
        concurrent=concurrent,
        seeds=[0, 1, 2],
        space={"local.lr": {"grid": [0.1, 0.001]}},
        scheduler={"name": "asha", "grace": 2, "reduction": 4},
    )
    assert f"each in {3 - concurrent} process" in said[0]
    rows = table(result.folder).values()
    ends = [(row["state"], row["rounds"]) for row in rows if row["setting"] == "1"]
    assert ends == ([("stopped", "2")] * 3 if concurrent == 1 else ends[:1] * 3)  # stops as soon as another is better
    assert [row["state"] for row in rows if row["setting"] == "0"] == ["finished"] * 3
    assert [row.score.count for row in result.settings] == [3, 3]
    for seed in range(3):
        run = result.folder / f"000-fedavg-s{seed}"
        assert torch.equal(params(run), plain(tmp_path, "rounds=8", f"seed={seed}").params)


@pytest.mark.exhaustive
def test_the_seeds_of_a_setting_share_its_placement_group(cluster, tmp_path):
    """Two seeds with a worker each, in parallel: the group holds both CPUs."""
    runtime = {"backend": "ray", "cpus_per_worker": 1.0, "workers": 1}
    result, said = carry_out(
        tmp_path, rounds=3, runtime=runtime, seeds=[0, 1], space={"local.lr": {"grid": [0.1]}}, concurrent=1
    )
    assert "1 setting x 2 seeds of 3 rounds, 1 setting at once, each 2 servers + 2 workers" in said[0]
    for seed in (0, 1):
        run = result.folder / f"000-fedavg-s{seed}"
        assert torch.equal(params(run), plain(tmp_path, "rounds=3", f"seed={seed}").params)


@pytest.mark.exhaustive
def test_the_fine_stage_continues_settings_near_the_best(cluster, tmp_path):
    result, said = carry_out(
        tmp_path,
        concurrent=1,
        space={"local.lr": {"grid": [0.1, 0.09, 0.001]}},
        stages=[{"rounds": 2, "within": 0.5}, {"rounds": 6}],
    )
    assert [line.split(": ")[1][0] for line in said if "settings x 1 seed" in line] == ["3", "2"]
    assert [group.setting for group in result.settings] == [0, 1]
    for setting, lr in enumerate((0.1, 0.09)):
        run = result.folder / f"00{setting}-fedavg-stage2-s0"
        assert torch.equal(params(run), plain(tmp_path, f"local.lr={lr}").params)
        assert "resumed at round 2" in (run / "log.txt").read_text()


def test_impossible_resources_are_refused_before_anything_is_written(cluster, tmp_path):
    with pytest.raises(BadConfig, match=r"needs 5 x 1 CPUs = 5.*has 2 CPUs"):
        carry_out(tmp_path, runtime={"backend": "ray", "workers": 5})
    assert not (tmp_path / "runs").exists()


def test_optuna_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadConfig, match=r"search=optuna needs the package optuna: pip install 'optuna>=4'"):
        carry_out(tmp_path, search="optuna", space={"local.lr": {"uniform": [0.01, 0.1]}})
    assert not (tmp_path / "runs").exists()


@pytest.mark.exhaustive
def test_a_sweep_is_a_group_at_wandb(cluster, tmp_path):
    """Two trials one after the other in one process, the second of which the scheduler stops."""
    from tests.runtime.wandb_records import records

    result, _ = carry_out(
        tmp_path,
        logging={"dir": str(tmp_path / "runs"), "loggers": ["wandb"]},
        concurrent=1,
        scheduler={"name": "asha", "grace": 2, "reduction": 2},
    )
    assert [row["state"] for row in table(result.folder).values()] == ["finished", "stopped"]
    for trial in table(result.folder):
        (run,) = [r.run for r in records(result.folder / trial) if r.WhichOneof("record_type") == "run"]
        assert (run.run_group, run.job_type, run.display_name) == (result.folder.name, "fedavg", trial)


def test_optuna_tunes_each_cell_of_the_grids_and_a_resumed_search_goes_on(cluster, tmp_path):
    """Two cells with two settings each, interrupted after the first two: four different rates, as without a pause."""
    pytest.importorskip("optuna")
    space = {"algorithm.name": {"grid": ["fedavg", "fedavgm"]}, "local.lr": {"uniform": [0.01, 0.1]}}
    said: list[str] = []

    def interrupt(line):
        said.append(line)
        if line.startswith("[2/4]"):
            signal.raise_signal(signal.SIGINT)  # Ctrl-C

    path = write(
        tmp_path, logging={"dir": str(tmp_path / "runs")}, search="optuna", samples=2, space=space, seeds=[0, 1],
        rounds=2, concurrent=1,
    )  # fmt: skip
    with pytest.raises(RaylflError, match="stopped: raylfl sweep --resume"):
        sweep(path, [], interrupt)
    (folder,) = (tmp_path / "runs").iterdir()
    first = [row for row in table(folder).values() if row["state"] == "finished"]
    result = resume(folder, [], said.append)
    rows = table(folder).values()
    assert [row["state"] for row in rows] == ["finished"] * 8
    assert [row for row in rows if row in first] == first
    assert len({row["local.lr"] for row in rows}) == 4
    assert sorted(row.trial.values["algorithm.name"] for row in result.settings) == ["fedavg"] * 2 + ["fedavgm"] * 2
    again = resume(folder, [], lambda line: None)
    assert [row.setting for row in again.settings] == [row.setting for row in result.settings]


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
