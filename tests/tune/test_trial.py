"""One trial in the test's own process has the bits of an ordinary run after any interruption."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from ray.tune.schedulers import PopulationBasedTraining

import raylfl
from raylfl.errors import RaylflError
from raylfl.runtime.records.mirror import refresh
from raylfl.runtime.records.views import here
from raylfl.tune.journal import Trial
from raylfl.tune.schedulers import Pbt, within
from raylfl.tune.score import WORST
from raylfl.tune.slots import TrialSlots
from raylfl.tune.space import Space
from raylfl.tune.trial import STATE, copy_state, run_trial
from tests.tune.sweeps import QUADRATICS, carry_out, job_of, metrics, sweep_of


def params(folder):
    return torch.load(folder / "final.pt", weights_only=True)["params"]


def ordinary(folder, **changes):
    """The same run without any sweep: 6 rounds, lr 0.1."""
    config = {k: v for k, v in {**QUADRATICS, **changes}.items() if k not in ("space", "metric")}
    return raylfl.run(config, [f"logging.dir={folder}/plain", "logging.report=false"])


@pytest.fixture
def plain(tmp_path):
    return ordinary(tmp_path)


def test_a_trial_is_an_ordinary_run(tmp_path, plain):
    sweep, trial = sweep_of(tmp_path), Trial("000", 0, 0, 0, 6, {"local.lr": 0.1})
    reports, _ = carry_out(sweep, trial, tmp_path / "s")
    folder = tmp_path / "s" / "000"
    assert {p.name for p in folder.iterdir()} >= {p.name for p in plain.run_dir.iterdir()} - {"log.txt"}
    assert torch.equal(params(folder), plain.params)
    assert [row["round"] for row in reports] == [1, 2, 3, 4, 5, 6]
    distances = [row["global/distance"] for row in plain.metrics]
    assert [row["score"] for row in reports] == pytest.approx([-d for d in distances])  # a window of one round
    again = raylfl.run(folder / "config.yaml", [f"logging.dir={tmp_path}/again", "logging.id=x"])
    assert torch.equal(again.params, plain.params)


def test_the_last_row_is_reported_when_the_run_is_complete(tmp_path):
    sweep, trial = sweep_of(tmp_path), Trial("000", 0, 0, 0, 6, {})
    carry_out(sweep, trial, tmp_path / "s", stop_after=6)  # a scheduler's stop at the last round has no effect
    assert json.loads((tmp_path / "s" / "000" / "summary.json").read_text())["rounds"] == 6


@pytest.mark.parametrize("changes", [{}, {"algorithm": "dsgd", "topology": "ring"}], ids=["star", "graph"])
def test_a_stopped_trial_can_be_resumed_and_ends_with_the_same_bits(tmp_path, changes):
    plain = ordinary(tmp_path, **changes)
    sweep, trial = sweep_of(tmp_path, **changes), Trial("000", 0, 0, 0, 6, {"local.lr": 0.1})
    first, _ = carry_out(sweep, trial, tmp_path / "s", stop_after=3)
    folder = tmp_path / "s" / "000"
    assert (len(first), (folder / "summary.json").exists()) == (3, False)
    assert (folder / "checkpoints" / "round_000003").is_dir()
    second, _ = carry_out(sweep, trial, tmp_path / "s")
    assert [row["round"] for row in second] == [1, 2, 3, 4, 5, 6]  # reports its earlier rounds, then continues
    assert second[:3] == first
    assert "resumed at round 3" in (folder / "log.txt").read_text()
    assert torch.equal(params(folder), plain.params)
    assert metrics(folder) == metrics(plain.run_dir)


def test_a_trial_killed_before_its_first_checkpoint_starts_from_round_0(tmp_path, plain):
    folder = tmp_path / "s" / "000"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"round": 0, "global/distance": 7.0}\n{"rou')
    carry_out(sweep_of(tmp_path), Trial("000", 0, 0, 0, 6, {"local.lr": 0.1}), tmp_path / "s")
    assert metrics(folder) == metrics(plain.run_dir)


def test_a_complete_trial_is_not_run_again(tmp_path):
    sweep, trial = sweep_of(tmp_path), Trial("000", 0, 0, 0, 6, {})
    first, _ = carry_out(sweep, trial, tmp_path / "s")
    written = (tmp_path / "s" / "000" / "final.pt").stat().st_mtime_ns
    assert carry_out(sweep, trial, tmp_path / "s")[0] == first
    assert (tmp_path / "s" / "000" / "final.pt").stat().st_mtime_ns == written


def test_a_run_that_diverges_is_reported_and_not_raised(tmp_path):
    reports, _ = carry_out(sweep_of(tmp_path), Trial("000", 0, 0, 0, 6, {"local.lr": 1e200}), tmp_path / "s")
    assert (reports[-1]["state"], reports[-1]["score"]) == ("diverged", WORST)
    assert "non-finite" in reports[-1]["reason"]


def test_values_that_cannot_be_are_reported_and_not_tried_again(tmp_path):
    values = {"participation.name": "uniform", "participation.size": 99}
    reports, _ = carry_out(sweep_of(tmp_path), Trial("000", 0, 0, 0, 6, values), tmp_path / "s")
    assert reports[-1]["state"] == "failed"
    assert "participation.size=99" in reports[-1]["reason"]


@pytest.mark.parametrize(
    ("metric", "rounds", "words"),
    [
        ("client/accuracy", 1, "metric=client/accuracy, but must be one that is recorded: train/loss, "),
        ("algo/actve", 1, "(did you mean algo/active?)"),
        ("algo/y_norm", 6, "metric=algo/y_norm was never measured in 000"),  # may be logged in later rounds only
    ],
)
def test_a_metric_that_is_never_measured_fails_with_its_name(tmp_path, metric, rounds, words):
    reports, _ = carry_out(
        sweep_of(tmp_path, metric=metric, algorithm={"name": "fedaware"}), Trial("000", 0, 0, 0, 6, {}), tmp_path / "s"
    )
    assert reports == [{"round": 6, "score": WORST, "state": "failed", "reason": reports[0]["reason"]}]
    assert words in reports[0]["reason"]
    assert len(metrics(tmp_path / "s" / "000")) == rounds


def test_a_later_stage_continues_the_earlier_one_without_changing_it(tmp_path, plain):
    sweep = sweep_of(tmp_path)
    short = Trial("short", 0, 0, 0, 3, {"local.lr": 0.1})
    carry_out(sweep, short, tmp_path / "s")
    before = (tmp_path / "s" / "short" / "metrics.jsonl").read_bytes()
    carry_out(sweep, Trial("long", 1, 0, 0, 6, {"local.lr": 0.1}, parent="short"), tmp_path / "s")
    assert "resumed at round 3" in (tmp_path / "s" / "long" / "log.txt").read_text()
    assert torch.equal(params(tmp_path / "s" / "long"), plain.params)
    assert (tmp_path / "s" / "short" / "metrics.jsonl").read_bytes() == before


def test_a_later_stage_continues_the_nodes_of_a_graph(tmp_path):
    """A checkpoint of a method without a server counts on its record of edges."""
    sweep = sweep_of(tmp_path, algorithm="dsgd", topology={"name": "ring"}, eval={"inconsistency": False})
    carry_out(sweep, Trial("short", 0, 0, 0, 3, {}), tmp_path / "s")
    carry_out(sweep, Trial("long", 1, 0, 0, 6, {}, parent="short"), tmp_path / "s")
    carry_out(sweep, Trial("alone", 1, 0, 0, 6, {}), tmp_path / "s")
    assert "resumed at round 3" in (tmp_path / "s" / "long" / "log.txt").read_text()
    assert torch.equal(params(tmp_path / "s" / "long"), params(tmp_path / "s" / "alone"))
    for name in ("metrics.jsonl", "topology.jsonl"):
        long, alone = ((tmp_path / "s" / run / name).read_text().splitlines() for run in ("long", "alone"))
        assert len(long) == len(alone) == 6


def test_trials_at_a_url_go_on_on_any_node(tmp_path, plain, monkeypatch):
    """Each node has its own folder; a stopped trial and a later stage continue what another node has copied."""
    url, sweep = f"file://{tmp_path}/far/s", sweep_of(tmp_path)
    nodes = {name: tmp_path / name / "file" / str(tmp_path)[1:] / "far/s" for name in "abc"}

    def on_node(name, trial, **options):
        monkeypatch.setenv("RAYLFL_STAGING", str(tmp_path / name))
        carry_out(sweep, trial, tmp_path / "s", url=url, **options)
        return nodes[name] / trial.id

    short = Trial("short", 0, 0, 0, 4, {"local.lr": 0.1})
    on_node("a", short, stop_after=3)
    second = on_node("b", short)
    assert "resumed at round 3" in (second / "log.txt").read_text()
    last = on_node("c", Trial("long", 1, 0, 0, 6, {"local.lr": 0.1}, parent="short"))
    assert "resumed at round 4" in (last / "log.txt").read_text()
    assert torch.equal(params(last), plain.params)
    assert not (tmp_path / "s").exists()
    assert metrics(here(f"{url}/long")) == metrics(plain.run_dir)
    refresh(nodes["a"] / "long", f"{url}/long")  # what the driver of the sweep reads
    assert metrics(nodes["a"] / "long") == metrics(plain.run_dir)


def test_a_trial_on_a_node_without_the_sweeps_folder_writes_nothing_there(tmp_path):
    job = job_of(sweep_of(tmp_path), tmp_path / "s")
    (tmp_path / "s" / "sweep.yaml").unlink()  # Ray Tune makes the folder itself
    with pytest.raises(RaylflError, match=r"cannot read .*/s: RAYLFL_RUNS must be a folder that all nodes share"):
        run_trial(job, Trial("000", 0, 0, 0, 6, {}), lambda row, snapshot: None)
    assert not list((tmp_path / "s").iterdir())


def test_a_later_stage_starts_from_round_0_if_phases_would_move(tmp_path):
    phases = {"phases": [{"until": 0.5, "value": 0.9}, {"until": 1.0, "value": 0.2}]}
    sweep = sweep_of(tmp_path, participation={"name": "bernoulli", "p": phases})
    carry_out(sweep, Trial("short", 0, 0, 0, 2, {}), tmp_path / "s")
    carry_out(sweep, Trial("long", 1, 0, 0, 6, {}, parent="short"), tmp_path / "s")
    carry_out(sweep, Trial("alone", 1, 0, 0, 6, {}), tmp_path / "s")
    assert metrics(tmp_path / "s" / "long") == metrics(tmp_path / "s" / "alone")


# -- population based training -----------------------------------------------------------------------------------

PBT = {"scheduler": {"name": "pbt", "interval": 2}, "samples": 2, "space": {"local.lr": {"uniform": [0.001, 0.2]}}}


def test_a_trial_with_the_state_of_another_continues_it_with_its_own_values(tmp_path):
    """Rounds 0-1 are the donor's at lr 0.1, rounds 2-5 follow from its state at lr 0.02: computed by hand."""
    sweep, kept = sweep_of(tmp_path, **PBT), tmp_path / "kept"
    donor, taker = Trial("donor", 0, 0, 0, 6, {"local.lr": 0.1}), Trial("taker", 0, 1, 0, 6, {"local.lr": 0.003})

    def keep_first(row, snapshot):
        if snapshot is not None and not kept.exists():
            copy_state(snapshot, kept)
            (kept / "run.txt").write_text((snapshot / "run.txt").read_text())

    run_trial(job_of(sweep, tmp_path / "s"), donor, keep_first)
    carry_out(sweep, taker, tmp_path / "s", stop_after=4)
    mutated = Trial("taker", 0, 1, 0, 6, {"local.lr": 0.02})
    carry_out(sweep, mutated, tmp_path / "s", taken=kept)
    folder = tmp_path / "s" / "taker"
    data, x = __import__("tests.runtime.modules", fromlist=["Quadratics"]).Quadratics(), torch.ones(3).double()
    hessians, b = torch.from_numpy(data.hessians), torch.from_numpy(data.b)
    for r in range(6):
        ends = []
        for i in range(6):
            z = x.clone()
            for _ in range(3):
                z = z - (0.1 if r < 2 else 0.02) * (hessians[i] @ z - b[i])
            ends.append(z)
        x = torch.stack(ends).mean(0)
    torch.testing.assert_close(params(folder), x, rtol=1e-12, atol=1e-14)
    assert yaml.safe_load((folder / "config.yaml").read_text())["local"]["lr"] == 0.02
    assert (folder / "lineage.txt").read_text() == "round 2: state of donor, with local.lr=0.02\n"
    assert len(metrics(folder)) == 6


def test_snapshots_come_every_interval_and_hold_a_whole_state(tmp_path):
    sweep, seen = sweep_of(tmp_path, **PBT), []

    def report(row, snapshot):
        if snapshot is not None:
            names = {p.name for p in snapshot.iterdir()}
            assert names <= {*STATE, "run.txt"}  # no config.yaml: not taken for a run
            seen.append((row["round"], sorted(p.name for p in (snapshot / "checkpoints").iterdir())[-1]))

    run_trial(job_of(sweep, tmp_path / "s"), Trial("t", 0, 0, 0, 6, {"local.lr": 0.1}), report)
    assert seen == [(2, "round_000002"), (4, "round_000004")]
    assert carry_out(sweep, Trial("t", 0, 0, 0, 6, {"local.lr": 0.1}), tmp_path / "s")[1] == [None]  # complete: none
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == ["sweep.yaml", "t"]


def test_mutated_values_stay_in_their_ranges():
    space = Space.parse({"a": {"uniform": [0.1, 1]}, "b": {"randint": [1, 4]}, "c": {"choice": ["x", "y"]}})
    mutated = within({"trial": {"values": {"a": 1.2, "b": 4, "c": "y"}}}, space)
    assert mutated["trial"]["values"] == {"a": 1.0, "b": 3, "c": "y"}
    assert Pbt().every(200) == 20


def test_mutations_follow_from_the_sweeps_seed_the_run_and_the_round(monkeypatch):
    """The global generators are neither used nor changed."""
    space = Space.parse({"a": {"uniform": [0, 1]}, "b": {"choice": ["x", "y", "z"]}})
    best = SimpleNamespace(config={"trial": {"id": "best", "values": {"a": 0.5, "b": "x"}}})

    def exploit(self, controller, trial, result):
        return self._get_new_config(trial, best)[0]["trial"]["values"]

    monkeypatch.setattr(PopulationBasedTraining, "on_trial_result", exploit)

    def mutated(seed, name, r):
        random.seed(r)
        np.random.seed(r)
        before = random.getstate()
        trial = SimpleNamespace(config={"trial": {"id": name}})
        values = Pbt(resample=0.5).build(space, 100, seed, 1, TrialSlots()).on_trial_result(None, trial, {"round": r})
        assert random.getstate() == before
        return values

    keys = [(seed, name, r) for seed in (0, 1) for name in ("t", "u") for r in (10, 20, 30)]
    first = [mutated(*key) for key in keys]
    assert first == [mutated(*key) for key in keys]
    assert len({str(values) for values in first}) > 6
