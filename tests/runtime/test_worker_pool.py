"""The worker pool's waits for workers that start, with stand-ins for Ray and its actors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.exceptions import ActorUnavailableError

from raylfl.errors import RaylflError
from raylfl.runtime.ray import worker_pool
from raylfl.runtime.ray.worker_pool import WorkerPool

RESTARTING = "The actor is temporarily unavailable: IOError: The actor is restarting."
DIED = "The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14"  # both are Ray's words


class Handle:
    """An actor whose pings have these answers, in order: an error's text, or None for an actor that is there."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.ping = SimpleNamespace(remote=lambda shared: self.answers.pop(0))


def raised(answer):
    if answer is not None:
        raise ActorUnavailableError(answer, None)


@pytest.fixture
def pool(monkeypatch):
    """`pool(*handles)` makes a pool of them, on a Ray that answers at once."""
    monkeypatch.setattr(worker_pool, "UNAVAILABLE_SECONDS", 0.0)
    ray = SimpleNamespace(wait=lambda references, **options: (references, []), get=raised)
    monkeypatch.setattr(worker_pool, "ray", ray)
    return lambda *handles: WorkerPool(handles, None, lambda text: None)


def test_a_worker_that_ray_restarts_slowly_is_waited_for(pool):
    assert pool(Handle(*[RESTARTING] * 100, None)).available() == [0]


def test_deaths_between_answers_that_ray_restarts_the_worker_are_counted(pool):
    with pytest.raises(RaylflError, match=r"worker 0 died 9 times as it started: .*Socket closed"):
        pool(Handle(*[RESTARTING, DIED] * 9, None)).available()


def test_a_slow_worker_delays_no_other(pool, monkeypatch):
    monkeypatch.setattr(worker_pool, "UNAVAILABLE_SECONDS", 3600.0)
    assert pool(Handle(RESTARTING), Handle(None)).available() == [1]
