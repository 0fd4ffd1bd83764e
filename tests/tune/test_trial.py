"""One trial in the test's own process has the bits of an ordinary run after any interruption."""

from __future__ import annotations

import json

import pytest
import torch

import raylfl
from raylfl.errors import RaylflError
from raylfl.execution.resources import Need
from raylfl.runtime.records.mirror import refresh
from raylfl.runtime.records.views import local_view
from raylfl.tune.journal import Journal, Trial
from raylfl.tune.score import WORST, Score
from raylfl.tune.seed_runs import SeedProgress
from raylfl.tune.stage import StageRun
from raylfl.tune.trial import run_trial, summary
from tests.tune.sweeps import QUADRATICS, carry_out, finish, job_of, metrics, sweep_of


def params(folder):
    return torch.load(folder / "final.pt", weights_only=True)["params"]


def ordinary(folder, **changes):
    """The same run without any sweep: 6 rounds, lr 0.1."""
    config = {k: v for k, v in {**QUADRATICS, **changes}.items() if k not in ("space", "metric")}
    return raylfl.run(config, [f"logging.dir={folder}/plain", "logging.report=false"])


@pytest.fixture
def plain(tmp_path):
    return ordinary(tmp_path)


def trial_of(name="000", seeds=(0,), rounds=6, parents=(), **values):
    return Trial(name, 0, 0, list(seeds), rounds, values or {"local.lr": 0.1}, list(parents))


def test_a_trial_is_an_ordinary_run(tmp_path, plain):
    reports = carry_out(sweep_of(tmp_path), trial_of(), tmp_path / "s")
    folder = tmp_path / "s" / "000-s0"
    assert {p.name for p in folder.iterdir()} >= {p.name for p in plain.run_dir.iterdir()} - {"log.txt", "sources.json"}
    assert torch.equal(params(folder), plain.params)
    assert [row["round"] for row in reports] == [1, 2, 3, 4, 5, 6]
    distances = [row["global/distance"] for row in plain.metrics]
    assert [row["score"] for row in reports] == pytest.approx(distances)  # a window of one round
    again = raylfl.run(folder / "config.yaml", [f"logging.dir={tmp_path}/again", "logging.id=x"])
    assert torch.equal(again.params, plain.params)


def test_the_seeds_of_a_trial_take_turns_and_it_reports_their_mean(tmp_path):
    """At ASHA's rungs, and at the end; each run has the bits of a plain one."""
    sweep = sweep_of(tmp_path, seeds=[0, 7], scheduler={"name": "asha", "grace": 2, "reduction": 2})
    reports = carry_out(sweep, trial_of(seeds=[0, 7]), tmp_path / "s")
    runs = [ordinary(tmp_path / str(seed), seed=seed) for seed in (0, 7)]
    for seed, run in zip((0, 7), runs, strict=True):
        assert torch.equal(params(tmp_path / "s" / f"000-s{seed}"), run.params)
    assert [row["round"] for row in reports] == [2, 4, 6]
    for row in reports:
        distances = [run.metrics[row["round"] - 1]["global/distance"] for run in runs]
        assert row["score"] == pytest.approx(sum(distances) / 2)


def test_a_trial_reports_once_all_its_seeds_have_a_score():
    """Seed 0 is measured from the second round on, as metrics `algo/...` may be; a seed that diverged is the worst."""
    score = Score("global/distance", "min")
    early, late, lost = (
        SeedProgress(1, {0: None}),
        SeedProgress(2, {0: 3.0}),
        SeedProgress(1, {1: None}, {1: "non-finite"}),
    )
    assert summary(score, [early, SeedProgress(1, {1: 1.0})]) == ({}, False)
    assert summary(score, [late, SeedProgress(2, {1: 1.0})]) == ({"score": 2.0, "diverged": []}, False)
    found = {"score": pytest.approx(WORST / 2), "diverged": [1], "reason": "non-finite"}
    assert summary(score, [late, lost]) == (found, False)


@pytest.mark.parametrize("changes", [{}, {"algorithm": "dsgd", "topology": "ring"}], ids=["star", "graph"])
def test_a_stopped_trial_can_be_resumed_and_ends_with_the_same_bits(tmp_path, changes):
    plain = ordinary(tmp_path, **changes)
    sweep = sweep_of(tmp_path, **changes)
    first = carry_out(sweep, trial_of(), tmp_path / "s", stop_after=3)
    folder = tmp_path / "s" / "000-s0"
    assert (len(first), (folder / "summary.json").exists()) == (3, False)
    assert (folder / "checkpoints" / "round_000003").is_dir()
    second = carry_out(sweep, trial_of(), tmp_path / "s")
    assert [row["round"] for row in second] == [1, 2, 3, 4, 5, 6]  # reports its earlier rounds, then continues
    assert second[:3] == first
    assert "resumed at round 3" in (folder / "log.txt").read_text()
    assert torch.equal(params(folder), plain.params)
    assert metrics(folder) == metrics(plain.run_dir)
    written = (folder / "final.pt").stat().st_mtime_ns
    assert carry_out(sweep, trial_of(), tmp_path / "s") == second  # a complete run is only read
    assert (folder / "final.pt").stat().st_mtime_ns == written


def test_the_last_row_is_reported_when_the_run_is_complete(tmp_path):
    carry_out(sweep_of(tmp_path), trial_of(), tmp_path / "s", stop_after=6)  # a stop at the last round has no effect
    assert json.loads((tmp_path / "s" / "000-s0" / "summary.json").read_text())["rounds"] == 6


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_a_trial_whose_runs_end_by_their_own_rule_ends_with_them(tmp_path, seeds):
    sweep = sweep_of(tmp_path, seeds=seeds, stop={"metric": "global/distance", "mode": "min", "target": 0.9})
    reports = carry_out(sweep, trial_of(seeds=seeds), tmp_path / "s")
    assert reports[-1]["round"] == 6
    assert len(metrics(tmp_path / "s" / "000-s0")) < 6
    (tmp_path / "sweep").mkdir()
    said = finish(sweep, tmp_path / "sweep")
    assert ["finished" in line for line in said] == [True, True]
    assert finish(sweep, tmp_path / "sweep") == []


@pytest.mark.parametrize(
    ("seeds", "changes"),
    [
        ([0], {}),
        ([0, 7], {"scheduler": {"name": "asha", "grace": 2, "reduction": 2}}),
        ([0, 1], {"model": {"class_path": "tests.tune.modules.Seeded", "init_args": {"seed": "${seed}"}}}),
        ([0, 1], {"stop": {"metric": "global/distance", "mode": "min", "target": 0.9}}),
    ],
    ids=["one", "two", "diverged", "stop"],
)
def test_a_resumed_sweep_reads_the_reports_that_its_trials_have_made(tmp_path, seeds, changes):
    """All of them for a trial that has ended; for an open one all before the last, which was perhaps not decided on."""
    sweep, folder, trial = sweep_of(tmp_path, seeds=seeds, **changes), tmp_path / "s", trial_of(seeds=seeds)
    made = {row["round"]: row["score"] for row in carry_out(sweep, trial, folder)}
    journal = Journal(folder)
    journal.plan(trial)
    stage = StageRun(sweep, 0, folder, journal, Need([{"CPU": 1.0}], 1, 1), print)
    for done, score in stage.reports(trial)[:-1]:
        assert made.get(done, score) == pytest.approx(score)
    open_rounds = [done for done, _ in stage.reports(trial)]
    journal.end(trial.id, "finished", "", [])
    most = max(len(metrics(folder / trial.run_id(seed))) for seed in seeds)
    assert stage.reports(trial)[-1] == (most, pytest.approx(made[6]))
    assert open_rounds == list(range(1, most))


def test_a_trial_killed_before_its_first_checkpoint_starts_from_round_0(tmp_path, plain):
    folder = tmp_path / "s" / "000-s0"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"round": 0, "global/distance": 7.0}\n{"rou')
    carry_out(sweep_of(tmp_path), trial_of(), tmp_path / "s")
    assert metrics(folder) == metrics(plain.run_dir)


def test_a_run_that_diverges_is_reported_and_not_raised(tmp_path):
    (report,) = carry_out(sweep_of(tmp_path), trial_of(**{"local.lr": 1e200}), tmp_path / "s")
    assert (report["state"], report["score"], report["round"]) == ("diverged", WORST, 6)
    assert "non-finite" in report["reason"]


def test_of_a_setting_one_of_whose_seeds_diverges_the_others_are_carried_out(tmp_path):
    """Its mean is the worst of all, in the direction of the metric."""
    lr = {"class_path": "tests.tune.modules.Seeded", "init_args": {"seed": "${seed}"}}
    for mode, worst in (("min", WORST / 2), ("max", -WORST / 2)):
        sweep = sweep_of(tmp_path, model=lr, seeds=[0, 1], mode=mode)
        report = carry_out(sweep, trial_of(seeds=[0, 1]), tmp_path / mode)[-1]
        assert (report["diverged"], report["score"]) == ([1], pytest.approx(worst))
        assert "state" not in report
        assert len(metrics(tmp_path / mode / "000-s0")) == 6


def test_values_that_cannot_be_are_reported_and_not_tried_again(tmp_path):
    values = {"participation.name": "uniform", "participation.size": 99}
    (report,) = carry_out(sweep_of(tmp_path), trial_of(**values), tmp_path / "s")
    assert report["state"] == "failed"
    assert "participation.size=99" in report["reason"]


@pytest.mark.parametrize(
    ("metric", "rounds", "words"),
    [
        ("client/accuracy", 1, "metric=client/accuracy, but must be one that is recorded: train/loss, "),
        ("algo/actve", 1, "(did you mean algo/active?)"),
        ("algo/y_norm", 6, "metric=algo/y_norm was never measured in 000"),  # may be logged in later rounds only
    ],
)
def test_a_metric_that_is_never_measured_fails_with_its_name(tmp_path, metric, rounds, words):
    sweep = sweep_of(tmp_path, metric=metric, mode="min", algorithm={"name": "fedaware"})
    reports = carry_out(sweep, trial_of(), tmp_path / "s")
    assert reports == [{"round": 6, "score": WORST, "state": "failed", "reason": reports[0]["reason"]}]
    assert words in reports[0]["reason"]
    assert len(metrics(tmp_path / "s" / "000-s0")) == rounds


@pytest.mark.parametrize("changes", [{}, {"algorithm": "dsgd", "topology": {"name": "ring"}}], ids=["star", "graph"])
def test_a_later_stage_continues_the_earlier_one_without_changing_it(tmp_path, changes):
    """A checkpoint of a method without a server counts on its record of edges."""
    sweep, folder = sweep_of(tmp_path, **changes), tmp_path / "s"
    carry_out(sweep, trial_of("short", rounds=3), folder)
    before = (folder / "short-s0" / "metrics.jsonl").read_bytes()
    carry_out(sweep, trial_of("long", parents=["short-s0"]), folder)
    carry_out(sweep, trial_of("alone"), folder)
    assert "resumed at round 3" in (folder / "long-s0" / "log.txt").read_text()
    assert torch.equal(params(folder / "long-s0"), params(folder / "alone-s0"))
    assert metrics(folder / "long-s0") == metrics(folder / "alone-s0")
    assert (folder / "short-s0" / "metrics.jsonl").read_bytes() == before


def test_a_later_stage_starts_from_round_0_if_phases_would_move(tmp_path):
    phases = {"phases": [{"until": 0.5, "value": 0.9}, {"until": 1.0, "value": 0.2}]}
    sweep, folder = sweep_of(tmp_path, participation={"name": "bernoulli", "p": phases}), tmp_path / "s"
    carry_out(sweep, trial_of("short", rounds=2), folder)
    carry_out(sweep, trial_of("long", parents=["short-s0"]), folder)
    carry_out(sweep, trial_of("alone"), folder)
    assert metrics(folder / "long-s0") == metrics(folder / "alone-s0")


def test_trials_at_a_url_go_on_on_any_node(tmp_path, plain, monkeypatch):
    """Each node has its own folder; a stopped trial and a later stage continue what another node has copied."""
    url, sweep = f"file://{tmp_path}/far/s", sweep_of(tmp_path)
    nodes = {name: tmp_path / name / "file" / str(tmp_path)[1:] / "far/s" for name in "abc"}

    def on_node(name, trial, **options):
        monkeypatch.setenv("RAYLFL_STAGING", str(tmp_path / name))
        carry_out(sweep, trial, tmp_path / "s", url=url, **options)
        return nodes[name] / trial.run_id(0)

    short = trial_of("short", rounds=4)
    on_node("a", short, stop_after=3)
    second = on_node("b", short)
    assert "resumed at round 3" in (second / "log.txt").read_text()
    last = on_node("c", trial_of("long", parents=["short-s0"]))
    assert "resumed at round 4" in (last / "log.txt").read_text()
    assert torch.equal(params(last), plain.params)
    assert not (tmp_path / "s").exists()
    assert metrics(local_view(f"{url}/long-s0")) == metrics(plain.run_dir)
    refresh(nodes["a"] / "long-s0", f"{url}/long-s0")  # what the driver of the sweep reads
    assert metrics(nodes["a"] / "long-s0") == metrics(plain.run_dir)


def test_a_trial_on_a_node_without_the_sweeps_folder_writes_nothing_there(tmp_path):
    job = job_of(sweep_of(tmp_path), tmp_path / "s")
    (tmp_path / "s" / "sweep.yaml").unlink()  # Ray Tune makes the folder itself
    with pytest.raises(RaylflError, match=r"cannot read .*/s: RAYLFL_RUNS must be a folder that all nodes share"):
        run_trial(job, trial_of(), print)
    assert not list((tmp_path / "s").iterdir())
