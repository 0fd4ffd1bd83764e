"""One trial in the test's own process has the bits of ordinary runs after any interruption; causes of failed ones."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import ActorDiedError

from raylfl.runtime.records.mirror import local_view
from raylfl.tune.journal import FINISHED
from raylfl.tune.score import WORST, Score
from raylfl.tune.trial import TrialJob, report
from raylfl.tune.tuner import cause
from tests.tune.sweeps import carry_out, finish, folder_of, metrics, params, plain, planned, sweep_of

ASHA = {"name": "asha", "grace": 2, "reduction": 2}
ONE = {"local.lr": {"grid": [0.1]}}
SEEDED = {"class_path": "tests.tune.modules.Seeded", "init_args": {"seed": "${seed}"}}
EARLY = {"metric": "global/distance", "mode": "min", "target": 0.9}


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return plain(tmp_path_factory.mktemp("plain"))


def only(tmp_path, name="s", **changes):
    """The sweep of one setting, planned in this folder, and its trial."""
    run, _ = planned(sweep_of(tmp_path, **{"space": ONE, **changes}), tmp_path / name)
    return run, run.trials[0]


def test_a_trial_is_an_ordinary_run_and_the_second_asking_costs_nothing(tmp_path, twin):
    run, trial = only(tmp_path)
    reports = carry_out(run, trial)
    folder = folder_of(tmp_path / "s", 0)
    assert {p.name for p in folder.iterdir()} >= {p.name for p in twin.run_dir.iterdir()} - {"log.txt", "sources.json"}
    assert torch.equal(params(folder), twin.params)
    assert [row["round"] for row in reports] == [1, 2, 3, 4, 5, 6]
    assert [row["score"] for row in reports] == pytest.approx([row["global/distance"] for row in twin.metrics])
    written = (folder / "final.pt").stat().st_mtime_ns
    other = {"local.lr": {"grid": [0.01, 0.1]}}  # another sweep with this setting
    again, _ = planned(sweep_of(tmp_path, space=other), tmp_path / "s")
    assert [again.end_of(trial).state for trial in again.trials] == ["open", FINISHED]
    (same,) = again.runs[again.trials[1].id]
    assert same.path == folder
    assert carry_out(again, again.trials[1]) == reports  # is only read
    assert (folder / "final.pt").stat().st_mtime_ns == written


def test_the_seeds_of_a_trial_take_turns_and_it_reports_their_mean(tmp_path, twin):
    """At ASHA's rungs, and at the end; each run has the bits of a plain one."""
    run, trial = only(tmp_path, seeds=[0, 7], scheduler=ASHA)
    reports = carry_out(run, trial)
    runs = [twin, plain(tmp_path, seed=7)]
    for seed, alone in zip((0, 7), runs, strict=True):
        assert torch.equal(params(folder_of(tmp_path / "s", 0, seed)), alone.params)
    assert [row["round"] for row in reports] == [2, 4, 6]
    for row in reports:
        distances = [alone.metrics[row["round"] - 1]["global/distance"] for alone in runs]
        assert row["score"] == pytest.approx(sum(distances) / 2)


def test_a_trial_reports_once_all_its_seeds_have_a_score():
    """Seed 0 is measured from the second round on, as metrics `algo/...` may be; a seed that diverged is the worst."""
    job = TrialJob(Score("global/distance", "min"), 6, [])
    early, late, lost = (1, {0: None}), (2, {0: 3.0}), (1, {1: WORST})
    assert report(job, 1, [early, (1, {1: 1.0})]) is None
    assert report(job, 2, [late, (2, {1: 1.0})]) == {"score": 2.0, "round": 2, "done": False}
    assert report(job, 2, [late, lost]) == {"score": pytest.approx(WORST / 2), "round": 2, "done": False}
    assert report(job, 2, [lost])["done"]


@pytest.mark.parametrize("changes", [{}, {"algorithm": "dsgd", "topology": "ring"}], ids=["star", "graph"])
def test_a_stopped_trial_can_be_resumed_and_ends_with_the_same_bits(tmp_path, twin, changes):
    twin = plain(tmp_path, **changes) if changes else twin
    run, trial = only(tmp_path, **changes)
    first = carry_out(run, trial, stop_after=3)
    folder = folder_of(tmp_path / "s", 0)
    assert (len(first), (folder / "summary.json").exists()) == (3, False)
    assert (folder / "checkpoints" / "round_000003").is_dir()
    second = carry_out(*only(tmp_path, **changes))
    assert [row["round"] for row in second] == [1, 2, 3, 4, 5, 6]  # reports its earlier rounds, then continues
    assert second[:3] == first
    assert "resumed at round 3" in (folder / "log.txt").read_text()
    assert torch.equal(params(folder), twin.params)
    assert metrics(folder) == metrics(twin.run_dir)


@pytest.mark.parametrize(
    ("seeds", "changes"),
    [([0], {}), ([0, 7], {"scheduler": ASHA}), ([0, 1], {"model": SEEDED}), ([0, 1], {"stop": EARLY})],
    ids=["one", "two", "diverged", "stop"],
)
def test_a_resumed_sweep_reads_the_reports_that_its_trials_have_made(tmp_path, seeds, changes):
    """All of them for a trial that has ended; for an open one all before the last, which was perhaps not decided on."""
    run, trial = only(tmp_path, seeds=seeds, **changes)
    made = {row["round"]: row["score"] for row in carry_out(run, trial)}
    read = dict(run.reports(trial))
    assert max(read) == max(len(metrics(folder_of(tmp_path / "s", 0, seed))) for seed in seeds)
    assert read[max(read)] == pytest.approx(made[6])
    assert all(made.get(done, score) == pytest.approx(score) for done, score in read.items() if done < max(read))
    fresh, trial = only(tmp_path, "open", seeds=seeds, **changes)
    if carry_out(fresh, trial, stop_after=2)[-1]["round"] == 2:
        assert fresh.reports(trial) == [(1, pytest.approx(read[1]))]


def test_of_a_setting_one_of_whose_seeds_diverges_the_others_are_carried_out(tmp_path):
    """Its mean is the worst of all, in the direction of the metric."""
    for mode, worst in (("min", WORST / 2), ("max", -WORST / 2)):
        run, trial = only(tmp_path, mode, model=SEEDED, seeds=[0, 1], mode=mode)
        last = carry_out(run, trial)[-1]
        assert last["score"] == pytest.approx(worst)
        assert "1 of 2 seeds diverged" in run.end(trial.id, last)
        assert len(metrics(folder_of(tmp_path / mode, 0))) == 6
    said = finish(sweep_of(tmp_path, space={"local.lr": {"grid": [1e200]}}), tmp_path / "lost")
    assert "diverged" in said[0]
    assert "non-finite" in said[0]
    assert finish(sweep_of(tmp_path, space={"local.lr": {"grid": [1e200]}}), tmp_path / "lost") == []


def test_a_trial_whose_runs_end_by_their_own_rule_ends_with_them(tmp_path):
    sweep = sweep_of(tmp_path, seeds=[0, 1], stop=EARLY)
    assert ["finished" in line for line in finish(sweep, tmp_path / "s")] == [True, True]
    assert len(metrics(folder_of(tmp_path / "s", 0))) < 6
    assert finish(sweep, tmp_path / "s") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {"participation": {"grid": [{"name": "uniform", "size": 99}]}}}, "participation.size=99"),
        ({"metric": "algo/y_norm", "mode": "min", "algorithm": {"name": "fedaware"}}, "algo/y_norm was never measured"),
    ],
)
def test_a_setting_that_cannot_be_is_reported_and_not_tried_again(tmp_path, changes, words):
    run, trial = only(tmp_path, **changes)
    last = carry_out(run, trial)[-1]
    assert (last["state"], last["score"]) == ("failed", WORST)
    assert words in last["reason"]
    assert words in run.end(trial.id, last)


def test_a_trial_whose_runs_are_not_on_this_node_names_the_remedy(tmp_path):
    run, trial = only(tmp_path)
    assert "RAYLFL_RUNS must be shared" in run.end(trial.id, {"round": 6, "score": 1.0, "done": True})


def test_trials_at_a_url_go_on_on_any_node(tmp_path, monkeypatch, twin):
    """Each node has its own folder; a stopped trial continues what another node has copied."""
    url = f"file://{tmp_path}/far/s"
    sweep = sweep_of(tmp_path, space=ONE)
    for name, stop in (("a", 3), ("b", None)):
        monkeypatch.setenv("RAYLFL_STAGING", str(tmp_path / name))
        run, _ = planned(sweep, tmp_path / name / "s", url=url)
        carry_out(run, run.trials[0], stop)
    node = tmp_path / "b" / "file" / str(tmp_path)[1:] / "far/s" / run.trials[0].runs[0]
    assert "resumed at round 3" in (node / "log.txt").read_text()
    assert torch.equal(params(node), twin.params)
    assert metrics(local_view(f"{url}/{node.name}")) == metrics(twin.run_dir)


class NeedsTwo(Exception):
    """An exception that can be pickled, but not loaded again."""

    def __init__(self, key: str, value: str):
        super().__init__(f"{key}={value}")


@pytest.mark.parametrize(
    ("error", "text"), [(ActorDiedError(), "its process ended"), (NeedsTwo("a", "b"), "NeedsTwo: a=b")]
)
def test_the_cause_is_plain_for_a_lost_process_and_otherwise_the_last_line_of_the_error(tmp_path, error, text):
    (tmp_path / "error.pkl").write_bytes(pickle.dumps(error))
    (tmp_path / "error.txt").write_text("Failure # 1\nTraceback\nNeedsTwo: a=b\n")
    assert cause(SimpleNamespace(pickled_error_file=str(tmp_path / "error.pkl"), local_path=str(tmp_path))) == text
    assert cause(SimpleNamespace(pickled_error_file=None, local_path=None)) == "its process was lost"
