"""Parts of a worker and of checkpoints that whole runs pass through with one value only."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raylfl.core.population import Population
from raylfl.core.samples import ClientShards
from raylfl.core.torch_state import torch_defaults
from raylfl.runtime.records import checkpoint
from raylfl.runtime.records.checkpoint import Checkpoints, sha256_of_shards
from raylfl.runtime.records.manifest import Damaged
from raylfl.runtime.round.blocks import _in_cohort_order
from raylfl.runtime.workers import backend
from raylfl.runtime.workers.backend import BlockCall, LocalBackend
from raylfl.runtime.workers.local_work import cohort_work
from raylfl.runtime.workers.measures import WeightedOracle
from raylfl.runtime.workers.task import Chunk, ClientReports, Task, TaskResult
from raylfl.runtime.workers.worker import Worker


@pytest.mark.parametrize(
    ("samples", "batch_size", "steps"),
    [(10, 1, 10), (10, 3, 4), (10, 5, 2), (10, 10, 1), (10, 11, 1), (10, 0, 1), (0, 3, 1), (1, 1, 1)],
)
def test_an_epoch_has_as_many_steps_as_batches(samples, batch_size, steps):
    worker = object.__new__(Worker)
    shards = {"trained_on": lambda client: range(samples) if client == 7 else range(99)}
    task = Task(0, (7, 1), (1, 1), (batch_size, 1), (1.0, 1.0), 0.1)
    for accumulate, expected in ((1, steps), (3, -(-steps // 3))):
        worker.setup = SimpleNamespace(accumulate=accumulate, **shards)
        assert worker._steps_per_epoch(task) == expected


@pytest.mark.parametrize("failing", [None, "first", "second", "both"])
def test_each_half_of_a_cohort_has_its_own_work_and_a_failed_one_rows_of_zeros(failing):
    worker, seen = object.__new__(Worker), []
    task = Task(5, (3, 1, 2), (4, 5, 6), (7, 8, 9), (1.5, 2.5, 3.5), 0.1)
    fails = {"first": [0], "second": [1], "both": [0, 1], None: []}[failing]

    def run(half, broadcast, states):
        seen.append((half, broadcast, states))
        if len(seen) - 1 in fails:
            return TaskResult(ClientReports.failed(half.clients, "error"))
        rows = torch.tensor([[float(c), 1.0] for c in half.clients])
        one = np.ones(len(half.clients))
        reports = ClientReports.of(half.clients, loss=one, last_loss=one, gradients=one, finite=one)
        return TaskResult(reports, {"update": rows}, [{"h": c} for c in half.clients])

    worker.run = run
    result = worker._in_halves(task, {"x": 0}, ["a", "b", "c"])
    uploads, states = result.uploads, result.client_states
    fields = [(half.round, half.clients, half.steps, half.batch_sizes, half.a_norm, half.lr) for half, _, _ in seen]
    assert fields == [(5, (3,), (4,), (7,), (1.5,), 0.1), (5, (1, 2), (5, 6), (8, 9), (2.5, 3.5), 0.1)]
    assert [given for *_, given in seen] == [["a"], ["b", "c"]]
    assert result.clients == [3, 1, 2]
    expected = [[3.0, 1.0] if 0 not in fails else [0.0, 0.0]]
    expected += [[1.0, 1.0], [2.0, 1.0]] if 1 not in fails else [[0.0, 0.0]] * 2
    if failing == "both":
        assert (uploads, states) == ({}, [])
        return
    assert uploads["update"].tolist() == expected
    assert states == [{"h": 3} if 0 not in fails else {}, *([{"h": 1}, {"h": 2}] if 1 not in fails else [{}, {}])]


def test_halves_without_states_return_none_as_a_whole_cohort_does():
    """A round joins the states of tasks that ran in halves and of others."""
    worker, task = object.__new__(Worker), Task(5, (3, 1), (4, 5), (7, 8), (1.5, 2.5), 0.1)
    one = np.ones(1)

    def run(half, broadcast, states):
        reports = ClientReports.of(half.clients, loss=one, last_loss=one, gradients=one, finite=one)
        return TaskResult(reports, {"update": torch.ones(1, 2)})

    worker.run = run
    assert worker._in_halves(task, {"x": 0}, [None, None]).client_states == []


def test_the_uploads_of_halves_are_joined_on_the_host(monkeypatch):
    """A GPU without room for a call may have no room for the uploads of all its clients."""
    worker, task = object.__new__(Worker), Task(5, (3, 1), (4, 5), (7, 8), (1.5, 2.5), 0.1)
    one, on_host = np.ones(1), []

    def run(half, broadcast, states):
        reports = ClientReports.of(half.clients, loss=one, last_loss=one, gradients=one, finite=one)
        return TaskResult(reports, {"update": torch.full((1, 2), float(half.clients[0]))})

    def to_host(uploads):
        on_host.append(uploads["update"].tolist())
        return {name: rows + 10 for name, rows in uploads.items()}

    worker.run = run
    monkeypatch.setattr("raylfl.runtime.workers.worker.all_to_host", to_host)
    uploads = worker._in_halves(task, {"x": 0}, [None, None]).uploads
    assert uploads["update"].tolist() == [[13.0, 13.0], [11.0, 11.0]]
    assert on_host == [[[3.0, 3.0]], [[1.0, 1.0]]]


def test_the_loss_and_gradient_of_all_clients_are_those_of_one_that_owns_all():
    oracle, loaded = object.__new__(WeightedOracle), []
    oracle.weights, g = [0.25, 0.75], torch.tensor([1.0, 2.0, 3.0])
    oracle.full = SimpleNamespace(of=lambda x, clients, weights: (len(clients) + sum(weights), g * x))
    oracle.flat = SimpleNamespace(load=loaded.append)
    x = torch.full((1, 3), 2.0)
    losses, gradients = oracle.gradients(x, [], lambda c: 0)
    assert (losses.tolist(), losses.dtype) == ([3.0], torch.float64)
    assert gradients.tolist() == [[2.0, 4.0, 6.0]]
    assert torch.equal(loaded[0], x[0])


@pytest.mark.parametrize(
    ("there", "most", "whole"),
    [(("2", "4"), 20, False), (("4",), 20, True), (("2",), 20, True), ((), 20, True), (("2", "4"), 2, True)],
)
def test_all_states_are_written_again_where_an_older_checkpoint_is_lost_or_there_are_many(
    tmp_path, monkeypatch, there, most, whole
):
    """Clients 0 and 1 have their newest states in checkpoints 2 and 4; client 1 has changed since."""
    for name in there:
        (tmp_path / "checkpoints" / f"round_00000{name}").mkdir(parents=True)
    aside, written, manifests = tmp_path / "aside", [], []
    here = object.__new__(Checkpoints)
    here.run_dir = SimpleNamespace(path=tmp_path, sync=dict)
    here._holders = {0: "round_000002", 1: "round_000004"}
    here.identity, here.resolved = {}, {}
    monkeypatch.setattr(checkpoint, "FOLD_AFTER", most)
    monkeypatch.setattr(checkpoint, "server_blob", lambda state: {})
    monkeypatch.setattr(checkpoint, "save_hashed", lambda content, path: path.name)
    monkeypatch.setattr(checkpoint, "client_chunks", lambda clients, states, backend: written.extend(clients) or [])
    monkeypatch.setattr(checkpoint, "defining", lambda resolved: {})
    monkeypatch.setattr(checkpoint, "encode", manifests.append)
    monkeypatch.setattr(checkpoint, "atomic_write", lambda path, content: None)
    aside.mkdir(exist_ok=True)
    holders = here._write(aside, SimpleNamespace(round=6, clients={1: "b", 0: "a"}, changed={1}), None)
    assert written == ([0, 1] if whole else [1])
    assert holders == {0: "round_000006" if whole else "round_000002", 1: "round_000006"}
    assert manifests[0]["clients"] == (
        {"round_000006": [0, 1]} if whole else {"round_000002": [0], "round_000006": [1]}
    )


def test_the_checksum_of_a_partition_depends_on_each_sample_and_its_owner():
    parts = [[[0, 1], [2, 3]], [[0, 1], [3, 2]], [[0, 1, 2], [3]], [[0, 1], [2, 4]], [[0, 1], [2, 3], []]]
    found = {sha256_of_shards(ClientShards.of([np.array(own, dtype=np.int64) for own in part])) for part in parts}
    assert len(found) == len(parts)


def test_weights_of_a_cohort_are_relative_to_uniform_ones():
    setup = SimpleNamespace(
        shards=[np.arange(3), np.arange(3, 7), np.arange(7, 9)],
        population=Population(np.array([3, 4, 2]), np.array([0.5, 0.25, 0.25])),
        algorithm=SimpleNamespace(full_gradient=False),
        seed=0,
        sampling="reshuffle",
        accumulate=1,
    )
    task = Task(0, (2, 0), (5, 4), (1, 1), (1.5, 2.5), 0.1)
    own = cohort_work(setup, task, None, None)
    assert own.work.relative_weight.tolist() == pytest.approx([0.75, 1.5])
    assert (own.work.steps.tolist(), own.work.a_norm.tolist(), own.work.lr) == ([5.0, 4.0], [1.5, 2.5], 0.1)
    assert own.full is None


@pytest.mark.parametrize(("gpus", "device"), [(0.0, "cpu"), (0.25, "gpu"), (1.0, "gpu"), (2.0, "gpu")])
def test_a_checkpoint_notes_the_kind_of_device(monkeypatch, gpus, device):
    monkeypatch.setattr(checkpoint, "fingerprint_of_config", lambda resolved: "")
    experiment = SimpleNamespace(
        config=SimpleNamespace(checkpoint=SimpleNamespace(keep=2), resolved={}, objects=None),
        setup=SimpleNamespace(shards=ClientShards.of([np.arange(2)]), runtime=SimpleNamespace(gpus=gpus)),
        algorithm=SimpleNamespace(pattern=SimpleNamespace(peers=False)),
    )
    assert Checkpoints(None, experiment, print).identity["device"] == device


def test_rows_of_blocks_are_put_into_the_order_of_the_cohort():
    plan = SimpleNamespace(nodes={0: np.array([4, 0]), 2: np.array([2]), 3: np.array([1, 3])})
    first, none, last = {"x": torch.tensor([[4.0], [0.0]])}, {}, {"x": torch.tensor([[1.0], [3.0]])}
    assert _in_cohort_order(plan, [first, {"x": torch.tensor([[2.0]])}, last])["x"].tolist() == [
        [0],
        [1],
        [2],
        [3],
        [4],
    ]
    assert _in_cohort_order(plan, [first, none, last])["x"].tolist() == [[0], [1], [0], [3], [4]]
    assert _in_cohort_order(plan, [none, {"x": torch.tensor([[2.0]])}, last])["x"].tolist() == [[0], [1], [2], [3], [0]]
    assert _in_cohort_order(plan, [none, none, none]) == {}


@pytest.mark.parametrize("faulty", [None, "metrics.jsonl", "participation.jsonl", "unreadable"])
def test_a_damaged_record_is_kept_before_its_rows_are_computed_again(faulty):
    kept, here = [], object.__new__(Checkpoints)

    def fault(name, size, sha256):
        assert (size, sha256) == (7, name)
        if faulty == "unreadable":
            raise OSError(5, "broken disk")
        return "its end is lost" if name == faulty else None

    here.run_dir, here.graph = SimpleNamespace(fault=fault, keep_damaged=kept.append), False
    names = ("metrics.jsonl", "participation.jsonl")
    manifest = {"round": 3, "records": dict.fromkeys(names, 7), "records_sha256": {name: name for name in names}}
    if faulty is None:
        here._check_records(manifest)
    else:
        with pytest.raises(Damaged, match="broken disk" if faulty == "unreadable" else "its end is lost"):
            here._check_records(manifest)
    assert kept == ([] if faulty is None else ["metrics.jsonl" if faulty == "unreadable" else faulty])


def test_an_evaluation_may_take_the_time_limit_of_a_client_for_each_batch(monkeypatch):
    limits = []
    monkeypatch.setattr(backend, "time_limit", lambda seconds: limits.append(seconds) or nullcontext())
    here = object.__new__(LocalBackend)
    here.worker, here.timeout, here._batch_size = SimpleNamespace(evaluate=lambda broadcast, chunks: "done"), 2.0, 4
    chunks = [Chunk("test", np.arange(size)) for size in (5, 4, 1)]
    assert [here.evaluate({}, some).result() for some in (chunks, chunks[1:], [])] == ["done"] * 3
    assert limits == [8.0, 4.0, 2.0]
    here.timeout = None
    here.evaluate({}, chunks).result()
    assert limits[-1] is None


@pytest.mark.parametrize("returns", [2, 3, 5])
def test_a_failed_call_has_as_many_results_as_a_successful_one(returns):
    job = SimpleNamespace(tasks=[SimpleNamespace(clients=(4, 1)), SimpleNamespace(clients=(2,))])
    report, *states = BlockCall(0, "work", job, (), returns).failed("lost")
    assert report.result.reports.errors == {4: "lost", 1: "lost", 2: "lost"}
    assert states == [{}] * (returns - 1)


def test_autocast_around_a_run_does_not_reach_it():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch_defaults():
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")
