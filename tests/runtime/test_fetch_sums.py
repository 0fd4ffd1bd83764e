"""Partial sums on their way to the server, with stand-ins for Ray and its workers."""

from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import ObjectLostError, RayTaskError

from raylfl.core.partial_sums import Node, joined
from raylfl.runtime.ray import sums
from raylfl.runtime.ray.actors import pack_roots, unpack_roots
from raylfl.runtime.ray.connection import DIRECT
from raylfl.runtime.ray.sums import Part, fetch
from raylfl.runtime.ray.traffic import Traffic
from raylfl.runtime.ray.worker_pool import WorkerLost

WIDTH = 10


def part(k, worker, node):
    """The upload of client k of four, which task k adds up."""
    return Part([{Node(0, k): torch.full((WIDTH,), float(k)).numpy()}], worker, node, [k], WIDTH)


def a_loss():
    return RayTaskError("join", "", ObjectLostError("0" * 56, None, ""))


@pytest.fixture
def channel(monkeypatch):
    """`channel(answer, lost)`: workers join parts, or fail; the parts of lost clients cannot be read."""
    monkeypatch.setenv(DIRECT, "0")

    def make(answer=None, lost=()):
        def get(reference):
            if any(node.k in lost for term in reference for node in term):
                raise ObjectLostError("0" * 56, None, "")
            return reference

        def results(sent):
            ((_, call),) = sent
            if isinstance(answer, Exception):
                raise answer
            count, *parts = call.arguments
            return [answer or pack_roots(joined([unpack_roots(p) for p in parts], count))]

        asked = []
        pool = SimpleNamespace(submit=lambda w, call: asked.append(w) or (w, call), results=results, asked=asked)
        monkeypatch.setattr(sums, "ray", SimpleNamespace(get=get))
        return SimpleNamespace(pool=pool, traffic=Traffic())

    return make


PARTS = [part(0, 5, "a"), part(1, 6, "b"), part(2, 7, "a"), part(3, 8, "a")]


def total(found):
    (roots,) = joined(found, 4)
    return {node: row.tolist() for node, row in roots.items()}


def test_the_parts_of_a_node_are_joined_there(channel):
    """0 + 2 is complete on node a, 1 + 3 is not: three vectors reach the server."""
    there = channel()
    found, lost = fetch(there, PARTS, 4)
    assert (there.pool.asked, lost) == ([5], [])
    assert there.traffic.received == 3 * WIDTH * 4
    assert total(found) == {Node(2, 0): [6.0] * WIDTH}


@pytest.mark.parametrize("answer", [WorkerLost("died"), a_loss(), ObjectLostError("0" * 56, None, "")])
def test_without_the_worker_that_joins_the_server_fetches_every_part(channel, answer):
    found, lost = fetch(channel(answer), PARTS, 4)
    assert (total(found), lost) == ({Node(2, 0): [6.0] * WIDTH}, [])


def test_the_tasks_of_lost_parts_are_named(channel):
    found, lost = fetch(channel(a_loss(), lost={2, 3}), PARTS, 4)
    assert (set(total(found)), lost) == ({Node(0, 0), Node(0, 1)}, [2, 3])


def test_an_error_in_the_code_of_a_worker_is_raised(channel):
    with pytest.raises(ValueError, match="a mistake"):
        fetch(channel(RayTaskError("join", "", ValueError("a mistake"))), PARTS, 4)


def test_vectors_that_travel_within_results_are_fetched_at_once(channel, monkeypatch):
    there = channel()
    monkeypatch.setenv(DIRECT, "1000")
    found, _ = fetch(there, PARTS, 4)
    assert (len(found), there.pool.asked) == (4, [])
