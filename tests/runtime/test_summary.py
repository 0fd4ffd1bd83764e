"""summary.json: final values, and best ones in the direction that the report and sweeps use as well."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import raylfl
from raylfl.diagnostics.metric_names import higher_is_better
from raylfl.errors import BadConfig
from raylfl.runtime.records import summary
from raylfl.runtime.records.summary import cpu_model, environment, git_commit, raylfl_commit, step_line, summarise
from tests.runtime.tiny import ONE_BY_ONE, TINY
from tests.shares import also


@pytest.mark.parametrize(("name", "best"), [("test/accuracy", 0.9), ("global/distance", 0.1)])
def test_the_best_value_is_the_largest_accuracy_and_the_smallest_of_the_rest(name, best):
    summary = summarise([{"round": r, name: value} for r, value in enumerate([0.5, 0.9, 0.1, 0.4])])
    assert summary == {"rounds": 4, "final": {name: 0.4}, "best": {name: best}}


def test_costs_and_times_have_no_best_value():
    row = {"round": 0, "cost/uplink_floats": 3, "time/round": 0.1, "cohort/sampled": 2, "algo/y_norm": 1.0}
    assert summarise([row])["best"] == {}


def test_the_host_is_described_as_the_system_describes_it():
    host = environment()["host"]
    assert host["memory_gib"] == round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    assert host["cpus"] == os.cpu_count()
    named = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    assert host["cpu"] == cpu_model()
    assert not named or named[0].endswith(f": {host['cpu']}")


def test_the_commit_is_that_of_the_folder_with_a_note_of_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None

    def git(*arguments):
        options = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *options, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init")
    Path("file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    assert git_commit() == git("rev-parse", "HEAD")
    Path("new").write_text("not in git")
    assert git_commit() == git("rev-parse", "HEAD")
    assert "own_commit" not in environment()
    for own in (["file"], ["file", "new"], ["", "file"]):  # "": code without a file
        clean = own == ["file"]
        files = [str(tmp_path / name) if name else "" for name in own]
        assert environment(files)["own_commit"] == git("rev-parse", "HEAD") + "+changes" * (not clean)
    Path("file").write_text("two")
    assert git_commit() == git("rev-parse", "HEAD") + "+changes"
    git("commit", "-am", "second")
    monkeypatch.setattr(summary, "_git", lambda *words: None if "status" in words else git(*words[1:]))
    assert git_commit() == git("rev-parse", "HEAD") + "+changes"  # git cannot say whether there are changes


def test_the_commit_of_raylfl_does_not_depend_on_the_working_directory(tmp_path, monkeypatch):
    commit = raylfl_commit.__wrapped__  # a process keeps its first answer
    here = raylfl_commit()
    monkeypatch.chdir(tmp_path)
    assert commit() == here == git_commit(Path(raylfl.__file__).parent)
    package = tmp_path / "project/.venv/raylfl"  # installed below a project of the user: not tracked there
    package.mkdir(parents=True)
    subprocess.run(["git", "init", str(tmp_path / "project")], check=True, capture_output=True)
    monkeypatch.setattr("raylfl.runtime.records.summary.__file__", str(package / "summary.py"))
    assert commit() is None


def test_the_line_of_local_steps_adds_them_up():
    rows = [{"step": "recorded", "count": 1980, "why": "a"}, {"step": "autograd", "count": 20, "why": "b"}]
    assert step_line(rows) == "recorded 1,980 of 2,000 (a); autograd 20 of 2,000 (b)"
    assert step_line([]) == "none"


def test_the_summary_of_a_run_rates_every_metric_as_the_report_does(runs):
    config = {**ONE_BY_ONE, "eval": {"every": 1, "clients": True}, "model": {"name": "mlp"}}
    result = raylfl.run({**config, "data": {"name": "digits"}}, [*runs, "rounds=3"])
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert "clients/accuracy_p10" in summary["best"]
    for name, value in summary["best"].items():
        values = [row[name] for row in result.metrics if name in row]
        assert value == (max if higher_is_better(name) else min)(values), name


def test_seconds_lie_within_the_duration_and_the_log_states_when_a_run_began_was_resumed_and_ended(runs):
    started = time.perf_counter()
    result = raylfl.run(ONE_BY_ONE, [*runs, "rounds=2"])
    duration, seconds = time.perf_counter() - started, [row["time/round"] for row in result.metrics]
    assert all(s > 0 for s in seconds)
    assert sum(seconds) < result.summary["wall_seconds"] < duration
    raylfl.resume(result.run_dir, ["rounds=3"])
    lines = [line.partition(" ")[2] for line in (result.run_dir / "log.txt").read_text().splitlines()]
    told = [line for line in lines if line.startswith(("2 rounds", "3 rounds", "resumed", "finished"))]
    process = f"rounds on local, process {os.getpid()}"
    ends = ["finished after 2 rounds", "finished after 3 rounds"]
    assert told == [f"2 {process}", ends[0], f"3 {process}", "resumed at round 2", ends[1]]


WAYS = [
    ([], {"cohort": "dense layers as batched matrix products"}),
    (["runtime.vectorize=never"], {"recorded": "autograd's bits", "autograd": "to record a kind of batch"}),
    (["runtime.vectorize=never", "runtime.step=autograd"], {"autograd": "runtime.step=autograd"}),
    (
        ["model.class_path=tests.runtime.modules.Noisy", "runtime.vectorize=never"],
        {"autograd": "draws random numbers from Python or numpy"},
    ),
    (["model.class_path=tests.runtime.modules.Counting"], {"autograd": "changes the module's attribute `steps`"}),
    (["model.init_args.dropout=0.5", "rounds=12"], {"cohort": "the model's own cohort_losses, replayed"}),
    also(["model.init_args.dropout=0.5"], {"cohort": "the model's own cohort_losses, by autograd, to record it"}),
    (
        ["model.name=lenet5", "data.init_args.upscale=28", "rounds=1", "eval.every=0"],
        {"batch_last": "small convolutions as matrix products"},
    ),
]


@pytest.mark.parametrize("kind", ["Noisy", "Counting"])
def test_a_step_that_must_be_recorded_is_an_error_in_cohorts_too(runs, kind):
    config = {**TINY, "model": {"class_path": f"tests.runtime.modules.{kind}"}, "data": {"name": "digits"}}
    with pytest.raises(BadConfig, match=rf"runtime.step=recorded, but {kind}.training_step (draws|changes)"):
        raylfl.run(config, [*runs, "rounds=4", "runtime.step=recorded"])


@pytest.mark.parametrize(("overrides", "expected"), WAYS)
def test_the_summary_states_the_ways_of_local_steps_and_their_reasons(runs, overrides, expected):
    config = {**TINY, "model": {"name": "mlp"}, "data": {"name": "digits"}}
    if "class_path" in str(overrides):
        del config["model"]["name"]
    result = raylfl.run({**config, "num_clients": 6}, [*runs, "rounds=4", *overrides])
    rows = result.summary["local_steps"]
    assert {row["step"] for row in rows} == set(expected)
    for step, why in expected.items():
        assert any(why in row["why"] for row in rows if row["step"] == step), rows
    assert sum(row["count"] for row in rows) == result.metrics[-1]["cost/local_steps"]
    for step in expected:
        assert step in (result.run_dir / "log.txt").read_text().split("local steps: ")[1]
