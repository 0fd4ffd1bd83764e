"""Workers that start slowly, not at all, or die as they start."""

from __future__ import annotations

import os
import signal
import time

import pytest
import ray

from raylfl.errors import RaylflError
from raylfl.runtime.ray import worker_pool
from raylfl.runtime.ray.worker_pool import WorkerPool


class Slow:
    def __init__(self, seconds):
        time.sleep(seconds)

    def ping(self, shared):
        return None


class Dying(Slow):
    def ping(self, shared):
        os.kill(os.getpid(), signal.SIGKILL)


class Lacking(Slow):
    def __init__(self, module):
        __import__(module)


@pytest.fixture(scope="module")
def one_cpu():
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def start(one_cpu, monkeypatch):
    """`start(cls, argument, has_room, **options)` makes a pool of one such worker; (pool, its notices)."""
    for name, seconds in (("NOTICE_SECONDS", 0.5), ("NO_ROOM_SECONDS", 2.0), ("MOST_STARTS", 2)):
        monkeypatch.setattr(worker_pool, name, seconds)
    actors, notices = [], []

    def call(cls, argument, has_room=True, **options):
        actors.append(ray.remote(cls).options(max_restarts=-1, **options).remote(argument))
        return WorkerPool(actors, None, notices.append, lambda: has_room), notices

    yield call
    for actor in actors:
        ray.kill(actor)


def test_a_worker_that_starts_slowly_is_waited_for_and_that_is_said(start):
    pool, notices = start(Slow, 4.0)
    assert pool.available() == [0]
    assert notices[0].startswith("waiting for a worker for ")


def test_a_cluster_without_room_ends_the_run_with_the_reason(start):
    with pytest.raises(RaylflError, match=r"the cluster had no room for a worker for 2.0 s"):
        start(Slow, 0.0, has_room=False, num_cpus=2)


def test_a_worker_that_dies_each_time_it_starts_ends_the_run(start):
    with pytest.raises(RaylflError, match=r"worker 0 died 3 times as it started"):
        start(Dying, 0.0)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("raylfl.nowhere", "the cluster's Python lacks the package raylfl.nowhere: pip install raylfl "),
        ("elsewhere", "No module named 'elsewhere' in the cluster's Python"),
    ],
)
def test_a_module_that_the_clusters_python_lacks_is_named(start, module, words):
    with pytest.raises(RaylflError, match=rf"worker 0 could not be started: {words}"):
        start(Lacking, module)
