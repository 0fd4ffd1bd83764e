"""Contained faults: failing and hanging clients, empty rounds, clients without data, exhausted memory."""

import json

import numpy as np
import pytest
import torch

import raylfl
from raylfl.algorithms import ALGORITHMS
from raylfl.errors import BadConfig, ClientFailed, NonFinite
from raylfl.heterogeneity.trace import make_row, write_trace
from raylfl.runtime import check
from raylfl.runtime.round.plan import Planner
from raylfl.runtime.workers.worker import Worker
from tests.runtime import measured, tiny
from tests.runtime.faults import options_of, outcome
from tests.runtime.tiny import ONE_BY_ONE, OWNED, TINY
from tests.shares import also, one_in

PERFECT = {**tiny.PERFECT, "rounds": 3}
CURSED = {  # client 1 owns the points 10..19, and the module fails over one of them
    **OWNED,
    "rounds": 3,
    "runtime": ONE_BY_ONE["runtime"],
    "model": {"class_path": "tests.runtime.tiny.Cursed", "init_args": {"raises": 13}},
    "local": {"steps": 2, "batch_size": "full", "lr": 0.05},
}


SPOILT_DATA = "data.init_args={owners: 6, spoilt: 13}"
NOT_1 = {0: True, 1: False, 2: True, 3: True, 4: True, 5: True}


def run(config, runs, *overrides):
    return raylfl.run(config, [*runs, *overrides])


def trace(result):
    return [json.loads(line) for line in (result.run_dir / "participation.jsonl").read_text().splitlines()]


def replay(result):
    return f"participation={{name: trace, path: {result.run_dir}/participation.jsonl}}"


# -- clients whose work fails -------------------------------------------------------------------------------------


class Stumbling(Worker):
    """A worker whose first attempts at client 1 fail, each of which is counted."""

    failures = attempts = 0

    def _solve(self, task, *rest):
        if task.clients == (1,):
            Stumbling.attempts += 1
            if Stumbling.attempts <= Stumbling.failures:
                raise ValueError("stumbled")
        return super()._solve(task, *rest)


@pytest.mark.parametrize(("retries", "failures"), [(0, 1), (3, 3), (3, 4)])
def test_a_client_is_tried_once_and_then_client_retries_times(runs, monkeypatch, retries, failures):
    monkeypatch.setattr("raylfl.runtime.workers.backend.Worker", Stumbling)
    Stumbling.failures, Stumbling.attempts = failures, 0
    alone = [f"runtime.client_retries={retries}", "runtime.vectorize=never"]
    call = lambda: run({**PERFECT, "rounds": 1}, runs, *alone)  # noqa: E731
    if failures <= retries:
        call()
        assert Stumbling.attempts == failures + 1
    else:
        with pytest.raises(ClientFailed, match=rf"client 1 failed in round 0 after {retries + 1} attempts"):
            call()
        assert Stumbling.attempts == retries + 1


def test_a_client_that_always_fails_ends_the_run_by_name_with_the_original_error(runs, tmp_path):
    with pytest.raises(ClientFailed) as caught:
        run(CURSED, runs, "logging.id=it")
    line = str(caught.value).splitlines()[0]
    assert "client 1 failed in round 0 after 3 attempts: ValueError: cursed" in line
    assert "runtime.on_client_error=drop" in line
    assert "in training_step" in str(caught.value)
    assert caught.value.__notes__ == [f"raylfl resume {tmp_path}/runs/tiny/it continues it"]


def test_the_received_clients_of_a_vectorised_task_count_although_a_lost_one_fails(runs, monkeypatch):
    """The parameters of a trace in which the upload of client 1 is lost in each round."""
    config = {**PERFECT, "model": {**TINY["model"], "init_args": {"norm": False, "dropout": 0.0}}, "num_clients": 8}
    config |= {"link": {"name": "bernoulli", "q": 0.6}, "rounds": 2}
    solve, failures, four = Worker._solve, [], ["runtime.micro_cohort=4", "runtime.vectorize=always"]

    def failing(self, task, *rest):
        if 1 in task.clients:
            failures.append(len(task.clients))
            raise ValueError("cursed")
        return solve(self, task, *rest)

    monkeypatch.setattr(Worker, "_solve", failing)
    failed = run(config, runs, "runtime.on_client_error=drop", *four)
    monkeypatch.undo()
    assert set(failures) == {4, 2, 1}
    assert not any(row["received"][1] for row in trace(failed))
    without = run(config, runs, replay(failed), *four)
    torch.testing.assert_close(failed.params, without.params)


@pytest.mark.parametrize("algorithm", [also("dsgd"), "push_pull", also("led")])
def test_a_node_whose_work_fails_does_not_work_in_that_round(runs, algorithm):
    """The same bits as a trace without it: its neighbours mix without its rows, and it keeps its own."""
    graph = [f"algorithm.name={algorithm}", "topology.name=complete", "runtime.vectorize=never"]
    failed = run(CURSED, runs, "runtime.on_client_error=drop", *graph)
    assert all(dict(zip(row["cohort"], row["received"], strict=True)) == NOT_1 for row in trace(failed))
    path = failed.run_dir / "participation.jsonl"
    others = [{k: v[:1] + v[2:] if isinstance(v, list) else v for k, v in row.items()} for row in trace(failed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in others))
    without = run(CURSED, runs, "model.init_args.raises=-1", *graph, replay(failed))
    assert torch.equal(failed.params, without.params)
    nodes = [torch.load(each.run_dir / "final.pt", weights_only=True)["nodes"] for each in (failed, without)]
    assert torch.equal(*nodes)
    assert not torch.equal(nodes[0][0], nodes[0][1])


@pytest.mark.parametrize("algorithm", ["focus", also("sfl")])
def test_a_dropped_client_is_a_lost_upload_and_harms_no_other(runs, algorithm):
    """The same bits as a trace in which its uploads are lost."""
    dropped = run(CURSED, runs, "runtime.on_client_error=drop", f"algorithm.name={algorithm}")
    assert all(dict(zip(row["cohort"], row["received"], strict=True)) == NOT_1 for row in trace(dropped))
    assert all("client 1 failed in round" in row["events"][0] for row in dropped.metrics)
    never = ["model.init_args.raises=-1", "runtime.vectorize=never"]
    lost = run(CURSED, runs, f"algorithm.name={algorithm}", replay(dropped), *never)
    assert torch.equal(dropped.params, lost.params)


@pytest.mark.parametrize("vectorize", ["never", "auto"])
def test_a_client_with_non_finite_uploads_is_named_or_dropped_without_effect_on_others(runs, vectorize):
    """One of its samples is not a number; the same bits as a trace in which its uploads are lost."""
    config = {**CURSED, "model": TINY["model"], "algorithm": {"name": "focus"}}
    config["runtime"] = {**CURSED["runtime"], "vectorize": vectorize}
    with pytest.raises(NonFinite, match="client 1 sent a non-finite update in round 0"):
        run(config, runs, SPOILT_DATA)
    dropped = run(config, runs, SPOILT_DATA, "runtime.on_nonfinite=drop")
    assert all(dict(zip(row["cohort"], row["received"], strict=True)) == NOT_1 for row in trace(dropped))
    assert all("client 1 sent a non-finite update in round" in row["events"][0] for row in dropped.metrics)
    assert torch.equal(dropped.params, run(config, runs, replay(dropped)).params)


SPOILT = {**CURSED, "model": {**TINY["model"], "init_args": {"norm": False}}}
DROPS = {"on_client_error": (CURSED, []), "on_nonfinite": (SPOILT, [SPOILT_DATA])}


@pytest.mark.parametrize("drop", DROPS)
def test_a_dropped_client_is_not_available_to_sampling_by_norms(runs, drop, monkeypatch):
    """The probabilities of the other clients sum to 1, as without client 1."""
    sample, probabilities = Planner.sample, []
    monkeypatch.setattr(Planner, "sample", lambda self, p, r: [probabilities.append(p), sample(self, p, r)][1])
    config, spoilt = DROPS[drop]
    config = {**config, "algorithm": {"name": "optimal_sampling"}, "participation": {"name": "uniform", "size": 3}}
    result = run(config, runs, *spoilt, f"runtime.{drop}=drop")
    assert len(result.metrics) == 3
    assert all("client 1" in row["events"][0] for row in result.metrics)
    for row, p in zip(trace(result), probabilities, strict=True):
        assert 1 not in row["cohort"]
        assert p[1] == 0
        assert np.delete(p, 1).min() > 0
        assert p.sum() == pytest.approx(1)
        assert row["p"] == p[row["cohort"]].tolist()
        assert all(row["received"])


def test_a_round_in_which_every_sampled_client_is_dropped_is_empty(runs):
    config = {**SPOILT, "algorithm": {"name": "optimal_sampling"}, "participation": {"name": "uniform", "size": 3}}
    all_diverge = ["local.lr=1e38", "runtime.on_nonfinite=drop"]
    result = run(config, runs, *all_diverge)
    assert [row["cohort"] for row in trace(result)] == [[], [], []]
    assert torch.equal(result.params, run(config, runs, *all_diverge, "rounds=0").params)


@pytest.mark.parametrize("vectorize", ["never", "always"])
def test_the_last_finite_loss_is_the_clients_own_if_it_has_one(vectorize):
    """Steps of 1e200 away from x_0 = (5, 5): client 1 takes two, and the loss of the first is finite."""
    points = measured.Points()
    start = np.square(5.0 - points.points[points.client_indices[1]]).sum(axis=1).mean() / 2
    with pytest.raises(NonFinite, match=rf"client 1 sent .* in round 0; last finite loss {start:.6g};"):
        measured.walk(["local.lr=1e200", f"runtime.vectorize={vectorize}"])


def traced(tmp_path, cohorts, config):
    """A config that replays these cohorts of two clients."""
    rows = [make_row(r, c, [1, 1], [True, True], [2, 2]) for r, c in enumerate(cohorts)]
    write_trace(tmp_path / "trace.jsonl", rows)
    return {**config, "participation": {"name": "trace", "path": str(tmp_path / "trace.jsonl")}, "rounds": len(rows)}


def test_a_run_that_a_client_failed_resumes_by_dropping_it(runs, tmp_path):
    """The failure leaves a checkpoint of the previous round, and a resumed run may have another policy."""
    config = traced(tmp_path, [[0, 2], [2, 3], [1, 4], [0, 1]], CURSED)
    with pytest.raises(ClientFailed, match="in round 2"):
        run(config, runs, "checkpoint.every=0", "logging.id=it")
    folder = tmp_path / "runs" / "tiny" / "it"
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["round_000002"]
    resumed = raylfl.resume(folder, ["runtime.on_client_error=drop"])
    clean = run(config, runs, "runtime.on_client_error=drop")
    assert outcome(resumed.run_dir) == outcome(clean.run_dir)


def test_the_last_finite_loss_is_known_after_a_resume_too(runs, tmp_path):
    """Client 1, whose loss is not a number from the first step on, comes in round 2: the message names round 1's."""
    config = traced(tmp_path, [[0, 2], [2, 3], [1, 4]], {**CURSED, "model": TINY["model"]})
    with pytest.raises(NonFinite, match=r"last finite loss \d") as first:
        run(config, runs, SPOILT_DATA, "checkpoint.every=0", "logging.id=it")
    with pytest.raises(NonFinite) as again:
        raylfl.resume(tmp_path / "runs" / "tiny" / "it")
    assert str(again.value) == str(first.value)


def test_a_pooled_algorithm_that_fails_makes_an_idle_round(runs):
    config = {**CURSED, "algorithm": {"name": "centralized"}}
    result = run(config, runs, "runtime.on_client_error=drop", "rounds=2")
    assert all("client 0 failed" in row["events"][0] for row in result.metrics)
    assert not any(any(row["received"]) for row in trace(result))


def test_a_failed_server_step_leaves_no_checkpoint_of_a_partial_change(runs, tmp_path):
    """FedVARP writes its table before the parameters turn out not to be finite."""
    config = {**ONE_BY_ONE, "algorithm": {"name": "fedvarp", "gamma": 1e300}, "checkpoint": {"every": 0}}
    with pytest.raises(NonFinite, match="the server's parameters are not finite"):
        run(config, runs, "logging.id=it")
    assert list((tmp_path / "runs" / "tiny" / "it" / "checkpoints").iterdir()) == []


def test_a_client_that_hangs_is_timed_out_in_process_too(runs):
    hang = ["model.init_args={raises: -1, hangs: 13}", "runtime.client_timeout=0.2", "runtime.client_retries=0"]
    words = r"client 1 failed in round 0 after 1 attempts: .*0.2 s .runtime.client_timeout"
    with pytest.raises(ClientFailed, match=words):
        run(CURSED, runs, *hang)


def test_a_model_that_hangs_on_its_first_batch_is_refused_before_anything_starts(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "WARM_UP_SECONDS", 2.0)
    with pytest.raises(BadConfig, match=r"Cursed cannot be .*: TimeoutError: no answer within"):
        run(CURSED, runs, "model.init_args={raises: -1, hangs: 0}", "runtime.client_timeout=0.1")
    assert not (tmp_path / "runs").exists()


def test_data_that_cannot_be_read_is_a_failure_of_the_client_that_needs_them(runs):
    broken = {"class_path": "tests.runtime.tiny.Items", "init_args": {"owners": 6, "broken": [13]}}
    config = {**CURSED, "model": TINY["model"], "data": broken}
    with pytest.raises(ClientFailed, match=r"client 1 failed in round 0 after 3 attempts: OSError: .*point 13"):
        run(config, runs)


# -- no clients, no data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", one_in(12, ALGORITHMS, ids=lambda entry: entry.name))
def test_clients_without_data_and_with_a_single_sample_are_defined(runs, tmp_path, entry):
    """The model has BatchNorm; client 0 has no sample, client 1 one sample, client 2 a last batch of one."""
    path = tmp_path / "partition.json"
    path.write_text(json.dumps({"0": [], "1": [0], "2": [1, 2, 3, 4, 5], "3": list(range(6, 20))}))
    config = {
        **ONE_BY_ONE,
        "num_clients": None,
        "partition": {"name": "file", "path": str(path)},
        "participation": {"name": "uniform", "size": 4},
        "link": {"name": "perfect"},
        "local": {"steps": 2, "batch_size": 4, "lr": 0.05},
        "algorithm": options_of(entry.name),
        "rounds": 3,
    }
    result = run(config, runs)
    assert torch.isfinite(result.params).all()
    for row in trace(result):
        steps = dict(zip(row["cohort"], row["steps"], strict=True))
        assert steps.get(0, 0) == 0 or entry.name == "centralized"


def test_an_empty_round_leaves_the_model_unchanged_and_is_recorded(runs):
    config, empty = {**PERFECT, "runtime": ONE_BY_ONE["runtime"]}, "participation={name: bernoulli, p: 0.0}"
    fresh = run(config, runs, "rounds=0")
    for name in ("fedavg", "focus", "sfl", "fedadam", "optimal_sampling"):
        if name == "optimal_sampling":
            empty = "participation={name: uniform, size: 2, availability: {name: bernoulli, p: 0.0}}"
        result = run(config, runs, empty, f"algorithm.name={name}")
        assert torch.equal(result.params, fresh.params)
        assert [row["cohort"] for row in trace(result)] == [[], [], []]
        assert [m["cohort/sampled"] for m in result.metrics] == [0, 0, 0]


# -- memory --------------------------------------------------------------------------------------------------------


def test_a_micro_cohort_that_does_not_fit_runs_in_halves(runs, monkeypatch):
    """On a device with memory for two clients, clients run in pairs, with the same uploads and states."""
    config = {**PERFECT, "model": {**TINY["model"], "init_args": {"norm": False, "dropout": 0.0}}, "num_clients": 8}
    config |= {"algorithm": {"name": "scaffold"}, "rounds": 2}
    plain = run(config, runs, "runtime.micro_cohort=4")
    solve, sizes = Worker._solve, []

    def cramped(self, task, *rest):
        if len(task.clients) > 2:
            raise torch.OutOfMemoryError("tried to allocate 80 GiB")
        sizes.append(len(task.clients))
        return solve(self, task, *rest)

    monkeypatch.setattr(Worker, "_solve", cramped)
    halved = run(config, runs, "runtime.micro_cohort=4")
    assert set(sizes) == {2}
    torch.testing.assert_close(halved.params, plain.params)
    assert trace(halved) == trace(plain)


def test_one_client_too_big_for_the_gpu_is_reported_with_the_measured_peak(runs, monkeypatch):
    def full(self, task, *rest):
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")

    monkeypatch.setattr(Worker, "_solve", full)
    words = r"GPU out of memory: this worker's peak was .* GiB \(lower local.batch_size"
    with pytest.raises(ClientFailed, match=words):
        run(ONE_BY_ONE, runs, "runtime.client_retries=0")
