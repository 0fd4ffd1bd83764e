"""Bytes between nodes, with a stand-in for Ray's record of its objects."""

import numpy as np
import pytest
import ray

from raylfl.runtime.ray import traffic
from raylfl.runtime.ray.traffic import TrafficCounter

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
    counters.count_arguments(results, THERE)
    assert between(counters) == 10**6
