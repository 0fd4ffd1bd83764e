"""Reports of clients' work against plain lists; parts of a worker; the sums that a server needs of a round."""

import pickle
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.oracle import GradientMode
from raylfl.core.partial_sums import SumPlan
from raylfl.core.population import ClientShards, Population
from raylfl.experiment.parts import BUFFERS, MEAN, MOMENTS
from raylfl.runtime.records import checkpoint
from raylfl.runtime.records.checkpoint import Checkpoints, sha256_of_shards
from raylfl.runtime.round.blocks import _in_cohort_order
from raylfl.runtime.round.dispatch import sum_plan
from raylfl.runtime.workers import backend
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.runtime.workers.measures import WeightedOracle
from raylfl.runtime.workers.task import Chunk, ClientReports, Task, TaskResult, added_up, order_of, without_rows
from raylfl.runtime.workers.worker import Worker
from raylfl.testing import recorded_round

PLAIN, QUICK = GradientMode("autograd", "it was asked for"), GradientMode("recorded", "it was not")


def reports(clients, **changes):
    """Reports whose loss is ten times the client, with one logged value."""
    made = ClientReports.of(clients, loss=np.array(clients) * 10.0, gradients=3)
    made.logged = {"a": np.array(clients) + 0.5}
    made.ways = Counter({PLAIN: len(clients)})
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("clients", "order"),
    [([5, 9], [1, 0]), ([9, 5], None), ([5, 2, 9], [2, 0, 1]), ([9, 2, 5], [0, 2, 1]), ([7], None), ([], None)],
)
def test_clients_are_put_into_the_order_of_a_list(clients, order):
    found = order_of(clients, np.array([9, 5, 7, 2]))
    assert (None if found is None else found.tolist()) == order
    whole = reports([9, 5, 2]).in_order(np.array([2, 7, 9, 5]))
    assert whole.rows["client"].tolist() == [2, 9, 5]
    assert whole.logged["a"].tolist() == [2.5, 9.5, 5.5]


def test_joined_reports_keep_their_order_and_what_only_some_of_them_logged():
    first = reports([4, 2], logged={"a": np.array([1.0, 2.0])}, errors={2: "first"})
    second = reports([9], logged={"b": np.array([7.0])}, errors={9: "second"}, ways=Counter({PLAIN: 2, QUICK: 5}))
    whole = ClientReports.joined([first, second])
    assert whole.rows["client"].tolist() == [4, 2, 9]
    np.testing.assert_array_equal(whole.logged["a"], [1.0, 2.0, np.nan])
    np.testing.assert_array_equal(whole.logged["b"], [np.nan, np.nan, 7.0])
    assert whole.errors == {2: "first", 9: "second"}
    assert whole.ways == {PLAIN: 4, QUICK: 5}
    assert len(ClientReports.joined([]).rows) == 0


@pytest.mark.parametrize("on_device", [False, True])
def test_uploads_that_were_added_up_are_kept_as_their_sum_only(on_device):
    """Client 9, whose task failed, is left out; the upload `own` is in no sum and stays as rows.

    on_device: a GPU has added up the first task, another was divided for lack of memory and has rows.
    """
    clients, rows = np.array([2, 4, 7]), torch.arange(15.0).reshape(3, 5)
    plan = SumPlan.of(clients, {"total": ("up", np.array([1.0, 10.0, 100.0]))}, torch.float32)
    results = [
        TaskResult(ClientReports.failed([9], "why")),
        TaskResult(reports([4]), {"up": rows[1:2], "own": rows[1:2]}),
        TaskResult(reports([2, 7]), {"up": rows[[0, 2]], "own": rows[[0, 2]]}),
    ]
    if on_device:
        results[1].sums = plan.parts([4], [results[1].uploads], stay=True)
        results[1].uploads = without_rows(results[1].uploads, plan)
    failed, first, second = pickle.loads(pickle.dumps(added_up(results, plan)))
    assert torch.equal(plan.sums([first.sums])["total"], torch.tensor([1.0, 10.0, 100.0]) @ rows)
    assert {name: own.tolist() for name, own in first.uploads.items()} == {"up": [], "own": rows[1:2].tolist()}
    assert {name: own.tolist() for name, own in second.uploads.items()} == {"up": [], "own": rows[[0, 2]].tolist()}
    assert second.uploads["up"].shape == (0, 5)  # the size of an upload is still known
    assert not failed.sums
    assert not second.sums


# -- parts of a worker and of checkpoints that whole runs pass through with one value only ----------------------------


def test_the_uploads_of_halves_are_joined_on_the_host(monkeypatch):
    """A GPU without room for a call may have no room for the uploads of all its clients."""
    worker, task = object.__new__(Worker), Task(5, (3, 1), (4, 5), (7, 8), (1.5, 2.5), 0.1)
    one, on_host = np.ones(1), []

    def run(half, broadcast, states):
        reports = ClientReports.of(half.clients, loss=one, last_loss=one, gradients=one)
        return TaskResult(reports, {"update": torch.full((1, 2), float(half.clients[0]))})

    def to_host(uploads):
        on_host.append(uploads["update"].tolist())
        return {name: rows + 10 for name, rows in uploads.items()}

    worker.run = run
    monkeypatch.setattr("raylfl.runtime.workers.worker.all_to_host", to_host)
    result = worker._in_halves(task, {"x": 0}, [None, None])
    assert result.uploads["update"].tolist() == [[13.0, 13.0], [11.0, 11.0]]
    assert result.client_states == []  # as of a cohort that did not run in halves: a round joins both
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


def test_rows_of_blocks_are_put_into_the_order_of_the_cohort():
    plan = SimpleNamespace(nodes={0: np.array([4, 0]), 2: np.array([2]), 3: np.array([1, 3])})
    first, none, last = {"x": torch.tensor([[4.0], [0.0]])}, {}, {"x": torch.tensor([[1.0], [3.0]])}
    second = {"x": torch.tensor([[2.0]])}
    assert _in_cohort_order(plan, [first, second, last])["x"].flatten().tolist() == [0, 1, 2, 3, 4]
    assert _in_cohort_order(plan, [first, none, last])["x"].flatten().tolist() == [0, 1, 0, 3, 4]
    assert _in_cohort_order(plan, [none, second, last])["x"].flatten().tolist() == [0, 1, 2, 3, 0]
    assert _in_cohort_order(plan, [none, none, none]) == {}


def test_the_checksum_of_a_partition_depends_on_each_sample_and_its_owner():
    parts = [[[0, 1], [2, 3]], [[0, 1], [3, 2]], [[0, 1, 2], [3]], [[0, 1], [2, 4]], [[0, 1], [2, 3], []]]
    found = {sha256_of_shards(ClientShards.of([np.array(own, dtype=np.int64) for own in part])) for part in parts}
    assert len(found) == len(parts)


@pytest.mark.parametrize(("gpus", "device"), [(0.0, "cpu"), (0.25, "gpu"), (1.0, "gpu"), (2.0, "gpu")])
def test_a_checkpoint_notes_the_kind_of_device(monkeypatch, tmp_path, gpus, device):
    monkeypatch.setattr(checkpoint, "fingerprint_of_config", lambda resolved: "")
    experiment = SimpleNamespace(
        config=SimpleNamespace(checkpoint=SimpleNamespace(keep=2), resolved={}, objects=None),
        setup=SimpleNamespace(shards=ClientShards.of([np.arange(2)]), runtime=SimpleNamespace(gpus=gpus)),
        algorithm=SimpleNamespace(pattern=SimpleNamespace(peers=False)),
    )
    assert Checkpoints(SimpleNamespace(path=tmp_path), experiment, print).identity["device"] == device


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


# -- the sums that a server needs of a round's uploads ----------------------------------------------------------------


POPULATION = Population(np.array([10, 20, 30, 40]), np.array([0.1, 0.2, 0.3, 0.4]))


def planned(*names, steps=(2, 5, 1, 3), received=(True, False, True)):
    """{sum: (upload, coefficients)} of a round of clients 3, 0 and 2; names: of what is broadcast beside x."""
    r = recorded_round(0, [3, 0, 2], POPULATION, steps=steps, received=received)
    x = torch.zeros(3)
    plan = sum_plan(FedAvg(), {"x": x, **dict.fromkeys(names, x)}, {"x": x}, r)
    assert plan.clients.tolist() == [c for c, here in zip([3, 0, 2], received, strict=True) if here]
    return {name: (plan.terms[term][0], plan.terms[term][1].tolist()) for name, term in plan.term_of.items()}


def test_means_of_the_received_have_equal_weights_for_buffers_and_the_clients_for_updates_and_moments():
    base, weights = planned(), pytest.approx([0.4 / 0.7, 0.3 / 0.7])
    assert base[MEAN] == ("update", weights)
    found = planned(BUFFERS, MOMENTS)
    assert found == {**base, BUFFERS: (BUFFERS, [0.5, 0.5]), MOMENTS: (MOMENTS, weights)}
    assert planned(BUFFERS, MOMENTS, received=(False, False, False)) == {}


def test_moments_are_no_sum_where_a_received_client_took_no_step():
    """Its moments are from before the round, so the mean leaves them out."""
    assert MOMENTS not in planned(MOMENTS, steps=(2, 5, 0, 3))
    assert MOMENTS in planned(MOMENTS, steps=(0, 5, 1, 3))  # client 0 was not received
