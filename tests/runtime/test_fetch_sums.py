"""Partial sums on their way to the server, with stand-ins for Ray and its workers."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ray.exceptions import ObjectLostError, RayTaskError

from raylfl.core.partial_sums import Node, SumPlan, add_up
from raylfl.runtime.ray import cohort, sums
from raylfl.runtime.ray.actors import WorkerActor
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.cohort import CohortInFlight
from raylfl.runtime.ray.connection import DIRECT
from raylfl.runtime.ray.group import StoredSums
from raylfl.runtime.ray.stored import StoredExperiment
from raylfl.runtime.ray.sums import fetch
from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.ray.worker_pool import CallInFlight, WorkerLost
from raylfl.runtime.workers.task import REPORT, ClientReports, Task, TaskResult, added_up

WIDTH = 10


def stored_sums(k, worker, node):
    """The upload of client k of four, which task k adds up."""
    sums = TaskResult.of_sums([{Node(0, k): torch.full((WIDTH,), float(k))}])
    return StoredSums(sums, worker, node, [k], 4 * WIDTH)


def a_loss():
    return RayTaskError("join", "", ObjectLostError("0" * 56, None, ""))


@pytest.fixture
def channel(monkeypatch):
    """`channel(failure, stage, lost, apart)`: workers do their calls, up to the stage that fails; the sums of lost
    clients cannot be read.
    """
    monkeypatch.setenv(DIRECT, "0")

    def make(failure=None, stage="join", lost=(), apart=False):
        def get(reference):
            if any(node.k in lost for term in reference.sums for node in term):
                raise ObjectLostError("0" * 56, None, "")
            return reference

        def results(sent):
            (call,) = [own.call for own in sent]
            if call.method == stage and isinstance(failure, Exception):
                raise failure
            answer = getattr(WorkerActor, call.method)(None, [], *call.arguments)
            answer = answer if call.returns == 1 else list(answer)
            return [failure if call.method == stage and failure else answer]

        asked = []
        pool = SimpleNamespace(
            submit=lambda w, call: asked.append((call.method, w)) or CallInFlight(call, w, 0, [None] * call.returns),
            results=results,
            asked=asked,
            stored=SimpleNamespace(placement=SimpleNamespace(nodes_apart=apart)),
        )
        monkeypatch.setattr(sums, "ray", SimpleNamespace(get=get))
        return SimpleNamespace(pool=pool, traffic=TrafficCounter(), group=None)

    return make


STORED = [stored_sums(0, 5, "a"), stored_sums(1, 6, "b"), stored_sums(2, 7, "a"), stored_sums(3, 8, "a")]


def total(found):
    (sums,) = add_up([result.sums for result in found], 4)
    return {node: row.tolist() for node, row in sums.items()}


def test_each_node_completes_its_columns_and_the_server_receives_one_vector(channel):
    there = channel()
    found, lost = fetch(there, STORED, 4)
    assert (there.pool.asked, lost) == ([("columns", 5), ("columns", 6), ("join", 5), ("join", 6)], [])
    assert there.traffic.received == WIDTH * 4
    assert total(found) == {Node(2, 0): [6.0] * WIDTH}


def test_the_parts_of_a_single_node_are_joined_there(channel):
    there = channel()
    found, lost = fetch(there, [replace(part, node="a") for part in STORED], 4)
    assert (there.pool.asked, lost, there.traffic.received) == ([("join", 5)], [], WIDTH * 4)
    assert total(found) == {Node(2, 0): [6.0] * WIDTH}


def test_no_node_receives_uploads_of_data_that_live_on_another(channel):
    """0 + 2 is complete on node a, 1 + 3 is not: three vectors reach the server."""
    there = channel(apart=True)
    found, lost = fetch(there, STORED, 4)
    assert (there.pool.asked, lost) == ([("join", 5)], [])
    assert there.traffic.received == 3 * WIDTH * 4
    assert total(found) == {Node(2, 0): [6.0] * WIDTH}


@pytest.mark.parametrize("failure", [WorkerLost("died"), a_loss(), ObjectLostError("0" * 56, None, "")])
@pytest.mark.parametrize(("stage", "apart"), [("columns", False), ("join", False), ("join", True)])
def test_without_a_worker_that_joins_the_server_fetches_every_part(channel, failure, stage, apart):
    found, lost = fetch(channel(failure, stage, apart=apart), STORED, 4)
    assert (total(found), lost) == ({Node(2, 0): [6.0] * WIDTH}, [])


@pytest.mark.parametrize("stage", ["columns", "join"])
def test_the_tasks_of_lost_parts_are_named(channel, stage):
    found, lost = fetch(channel(a_loss(), stage, lost={2, 3}), STORED, 4)
    assert (set(total(found)), lost) == ({Node(0, 0), Node(0, 1)}, [2, 3])


def test_an_error_in_the_code_of_a_worker_is_raised(channel):
    with pytest.raises(ValueError, match="a mistake"):
        fetch(channel(RayTaskError("join", "", ValueError("a mistake"))), STORED, 4)


@pytest.mark.parametrize(("limit", "received"), [(1000, 4), (WIDTH * 4 - 1, 3)])
def test_pieces_that_would_travel_within_results_are_not_made(channel, monkeypatch, limit, received):
    """Vectors below the limit are fetched at once, those below twice the limit are joined on their nodes only."""
    there = channel()
    monkeypatch.setenv(DIRECT, str(limit))
    found, _ = fetch(there, STORED, 4)
    assert there.traffic.received == received * WIDTH * 4
    assert [method for method, _ in there.pool.asked] == ["join"] * (received == 3)
    assert total(found) == {Node(2, 0): [6.0] * WIDTH}


class Pool:
    """Two workers of a run, each on a node of its own, which send the upload k + 1 of client k; worked: the clients."""

    stored, nodes = StoredExperiment(None), ["a", "b"]

    def __init__(self):
        self.worked = []

    def __len__(self):
        return 2

    def send(self, calls):
        return [CallInFlight(call, k % 2, 0, []) for k, call in enumerate(calls)]

    def results(self, sent):
        return [self.answer(*pickle.loads(each.call.arguments[0])) for each in sent]

    def answer(self, tasks, returns_states, separate, in_ring):
        ((k,),) = (task.clients for task in tasks)
        self.worked.append(k)
        plan = tasks[0].sums
        result = TaskResult(
            ClientReports.of([k], finite=True), {"up": torch.full((1, WIDTH), k + 1.0, dtype=plan.dtype)}
        )
        added_up([result], plan, each=False)
        if separate is None:
            return [result]
        return [[replace(result, sums=[])], TaskResult.of_sums(result.sums)]


def in_flight(pool, dtype=torch.float32):
    """The work of clients 0 and 1, whose uploads are summed, and the plan of the sum."""
    plan = SumPlan.of(np.arange(2), {"a": ("up", np.ones(2))}, dtype)
    tasks, x = [Task(0, (k,), (1,), (1,), (1.0,), 0.1, plan, (None,)) for k in range(2)], np.zeros(WIDTH, np.float32)
    channel = Channel(pool, TrafficCounter(), 1, None, False, 0, False)
    return CohortInFlight(channel, tasks, {"x": x}), plan


def test_small_sums_come_with_the_answers_and_are_not_fetched(monkeypatch):
    monkeypatch.setattr(cohort, "fetch", None)
    (work, plan), small = in_flight(Pool()), WIDTH * 4
    done = work.results()
    assert plan.sums([result.sums for result in done])["a"].tolist() == [3.0] * WIDTH
    assert work.channel.traffic.received == sum(REPORT.itemsize + small for _ in done)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_work_whose_sums_were_lost_with_their_node_is_repeated(monkeypatch, dtype):
    monkeypatch.setenv(DIRECT, "0")
    pool, losses = Pool(), [{1}, set()]

    def fetch(channel, parts, count):
        assert {part.size for part in parts} == {WIDTH * dtype.itemsize}
        lost = losses.pop(0)
        return [part.reference for part in parts if not lost & {*part.tasks}], sorted(lost)

    monkeypatch.setattr(cohort, "fetch", fetch)
    work, plan = in_flight(pool, dtype)
    done = work.results()
    assert pool.worked == [0, 1, 1]
    assert plan.sums([result.sums for result in done if result.sums])["a"].tolist() == [3.0] * WIDTH
