"""Client states on their workers, seen from the server: limits of calls, and errors in the words of the worker."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ray.exceptions import RayTaskError

from raylfl.core.placement import Placement
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.held_states import FILE_SECONDS, HeldStates
from raylfl.runtime.ray.stored import StoredExperiment
from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.records.manifest import Damaged
from raylfl.runtime.workers.state_store import HeldState

STATES = {client: {"c": torch.full((1, 2), float(client))} for client in range(4)}


class Pool:
    """Workers 0 and 1 of clients 0, 2 and 1, 3; `answer` gives the result of a call, or raises."""

    stored = StoredExperiment(None, Placement(np.array([0, 1, 0, 1]), (None, None)), ("", ""))

    def __init__(self, answer):
        self.answer, self.calls = answer, []

    def send(self, calls):
        self.calls += calls
        return calls

    def with_retries(self, sent, attempts):
        return [self.answer(call) for call in sent]


def states(answer, timeout=None, before=1):
    """(the states of a run with this limit of calls, its pool)."""
    pool = Pool(answer)
    return HeldStates(
        Channel(pool, TrafficCounter(), 1, timeout, True, 8, False, "it"), lambda text: None, before
    ), pool


def test_each_worker_gets_the_states_of_its_clients_and_the_server_keeps_handles():
    held, pool = states(lambda call: None)
    assert held.take(STATES, 7) == {client: HeldState(client, 7) for client in range(4)}
    given = {call.assigned: call.arguments for call in pool.calls}
    assert {worker: [state.client for state in arguments[1]] for worker, arguments in given.items()} == {
        0: [0, 2],
        1: [1, 3],
    }
    assert given[1][2]["c"].tolist() == [[1.0, 1.0], [3.0, 3.0]]


@pytest.mark.parametrize(("timeout", "before", "limit"), [(None, 9, None), (5.0, 1, 5.0), (5.0, 9, 45.0)])
def test_a_call_may_wait_for_the_local_work_before_it(timeout, before, limit):
    """In a star one call per worker precedes, in a ring the work of all clients; each has its own limit."""
    held, pool = states(lambda call: None, timeout, before)
    held.take(STATES, 1)
    assert {call.timeout for call in pool.calls} == {None if limit is None else limit + FILE_SECONDS}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Damaged("clients_000.pt does not fit")])
def test_errors_of_a_worker_are_raised_as_it_raised_them(error):
    def failing(call):
        raise RayTaskError("take_states", "", error).as_instanceof_cause()

    with pytest.raises(type(error)) as caught:
        states(failing)[0].take(STATES, 1)
    assert caught.value is error


def test_a_file_that_one_worker_cannot_read_is_read_by_the_server(tmp_path):
    path = tmp_path / "clients_000.pt"
    torch.save({"clients": torch.arange(4), "states": {}}, path)
    for blind, found in ((None, {0: (0, 3), 2: (2, 3), 3: (3, 3)}), (1, None)):
        held, pool = states(lambda call, blind=blind: call.assigned != blind)
        assert held.load(path, {0, 2, 3}, 3) == found
        assert {call.arguments[2] for call in pool.calls} == {(path.stat().st_size, path.stat().st_mtime_ns)}
