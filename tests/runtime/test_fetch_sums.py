"""Partial sums on their way to the server, and bytes between nodes, with stand-ins for Ray and its workers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import ObjectLostError, RayTaskError

from raylfl.core.partial_sums import Node, add_up
from raylfl.runtime.ray import sums, traffic
from raylfl.runtime.ray.actors import WorkerActor
from raylfl.runtime.ray.connection import DIRECT
from raylfl.runtime.ray.group import StoredSums
from raylfl.runtime.ray.sums import fetch
from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.ray.worker_pool import CallInFlight, WorkerLost
from raylfl.runtime.workers.task import TaskResult

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
            traffic=TrafficCounter(),
            submit=lambda w, call: asked.append((call.method, w)) or CallInFlight(call, w, 0, [None] * call.returns),
            results=results,
            asked=asked,
            stored=SimpleNamespace(placement=SimpleNamespace(nodes_apart=apart)),
        )
        monkeypatch.setattr(sums, "ray", SimpleNamespace(get=get))
        return SimpleNamespace(pool=pool, group=None)

    return make


STORED = [stored_sums(0, 5, "a"), stored_sums(1, 6, "b"), stored_sums(2, 7, "a"), stored_sums(3, 8, "a")]


def total(found):
    (sums,) = add_up([result.sums for result in found], 4)
    return {node: row.tolist() for node, row in sums.items()}


@pytest.mark.parametrize(
    ("parts", "apart", "limit", "asked", "received"),
    [
        (STORED, False, 0, [("columns", 5), ("columns", 6), ("join", 5), ("join", 6)], 1),  # each node its columns
        ([replace(part, node="a") for part in STORED], False, 0, [("join", 5)], 1),
        (STORED, True, 0, [("join", 5)], 3),  # 0 + 2 is complete on node a; nodes apart receive no uploads of others
        (
            STORED,
            False,
            WIDTH * 4 - 1,
            [("join", 5)],
            3,
        ),  # below twice the limit vectors are joined on their nodes only
        (STORED, False, 1000, [], 4),  # and below the limit fetched at once
    ],
)
def test_vectors_are_joined_where_they_are_and_few_reach_the_server(
    channel, monkeypatch, parts, apart, limit, asked, received
):
    there = channel(apart=apart)
    monkeypatch.setenv(DIRECT, str(limit))
    found, lost = fetch(there, parts, 4)
    assert (there.pool.asked, lost) == (asked, [])
    assert there.pool.traffic.received == received * WIDTH * 4
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


# -- bytes between nodes, with a stand-in for Ray's record of its objects ---------------------------------------------


HERE, THERE, FAR = "here", "there", "far"
VALUE = np.zeros(3)  # 24 bytes


@pytest.fixture
def counted(monkeypatch):
    """(the server's counters, `of(places, size)` makes a reference to such an object)."""
    record = {}

    def of(places, size):
        reference = ray.ObjectRef(len(record).to_bytes(28, "little"))
        record[reference] = places, size
        return reference

    monkeypatch.setattr(traffic, "located", record.__getitem__)
    monkeypatch.setattr(traffic, "direct_bytes", lambda: 1000)
    return TrafficCounter(HERE), of


def between(counters):
    return counters.take()["traffic/between_nodes_bytes"]


def test_values_in_calls_and_results_cross_to_other_nodes_only(counted):
    counters, _ = counted
    for node in (HERE, THERE):
        counters.count_arguments([VALUE, "text"], node)
        counters.count_results({"x": VALUE}, [], node)
    assert between(counters) == 2 * 24
    assert between(counters) == 0


def test_an_object_whose_size_ray_lists_late_is_counted(monkeypatch):
    listed = iter([None, None, 1000])
    monkeypatch.setattr(
        traffic, "get_local_object_locations", lambda refs: {refs[0]: {"node_ids": [FAR], "object_size": next(listed)}}
    )
    counters = TrafficCounter(HERE)
    counters.count_arguments([ray.ObjectRef(bytes(28))], HERE)
    assert between(counters) == 1000


def test_an_object_crosses_once_to_each_node_that_has_no_copy(counted):
    counters, of = counted
    shared = of([HERE, FAR], 1000)
    for node in (HERE, THERE, THERE, FAR):
        counters.count_arguments([shared], node)
    assert between(counters) == 1000
    counters.count_arguments([shared], THERE)  # Ray may list the copy late
    assert between(counters) == 0


def test_small_results_cross_to_the_server_and_again_with_each_call(counted):
    counters, of = counted
    counters.count_results(VALUE, [of([], 100), of([THERE], 5000)], THERE)
    assert between(counters) == 24 + 100
    for node in (HERE, THERE, THERE):
        counters.count_arguments([of([], 100)], node)
    assert between(counters) == 2 * 100


def test_a_large_result_that_ray_does_not_list_is_on_the_node_that_made_it(counted):
    counters, of = counted
    result = of([], 10**6)
    counters.count_results(VALUE, [result], THERE)
    assert between(counters) == 24
    counters.count_arguments([result], THERE)
    assert between(counters) == 0
    for _ in range(2):
        counters.count_arguments([result], FAR)
    assert between(counters) == 10**6


def test_the_oldest_results_are_forgotten(counted, monkeypatch):
    monkeypatch.setattr(traffic, "KEPT", 2)
    counters, of = counted
    results = [of([], 10**6) for _ in range(3)]
    counters.count_results(None, results, THERE)
    counters.count_arguments(results[::-1], THERE)
    assert between(counters) == 10**6
