"""On Ray: the same bits as in process, for any number of workers; workers and server may die."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
import ray
import torch

import raylfl
from raylfl.config.schema import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.runtime.cluster import count_workers
from tests.runtime.test_run import DIGITS, QUADRATICS

TIMES = ("time/round",)


@pytest.fixture(scope="module")
def cluster():
    """One small cluster for the whole file: starting Ray is the slow part."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=4, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def on_ray(config, runs, *overrides, watch=None):
    small = ["runtime.backend=ray", "runtime.cpus_per_worker=0.5"]
    return raylfl.run(config, [*runs, *small, *overrides], watch)


def comparable(rows):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.mark.parametrize("algorithm", ["fedavg", "focus", "sfl", "fedaware", "optimal_sampling"])
def test_ray_gives_the_bits_of_the_local_backend_for_any_number_of_workers(cluster, runs, algorithm):
    world = [
        f"algorithm.name={algorithm}",
        "link.name=bernoulli",
        "link.q=0.3",
        "local.steps={list: [1, 2, 3, 4, 5, 6, 7, 8]}",
    ]
    here = raylfl.run(DIGITS, [*runs, *world])
    for workers in (1, 3):
        there = on_ray(DIGITS, runs, *world, f"runtime.workers={workers}")
        assert torch.equal(here.params, there.params)
        assert comparable(here.metrics) == comparable(there.metrics)
        for name in ("participation.jsonl", "partition.json"):
            assert (here.run_dir / name).read_bytes() == (there.run_dir / name).read_bytes()


def workers_of_this_cluster():
    return [p for p in psutil.process_iter(["name", "cmdline"]) if "WorkerActor" in " ".join(p.info["cmdline"] or [])]


def test_a_killed_worker_costs_nothing_but_time(cluster, runs):
    world = ["algorithm.name=focus", "rounds=12"]
    undisturbed = raylfl.run(QUADRATICS, [*runs, *world])
    killed = []

    def kill(progress):
        if progress.metrics["round"] in (2, 7):
            victim = workers_of_this_cluster()[0]
            victim.send_signal(signal.SIGKILL)
            killed.append(victim.pid)

    survived = on_ray(QUADRATICS, runs, *world, "runtime.workers=2", watch=kill)
    assert len(killed) == 2
    assert torch.equal(undisturbed.params, survived.params)
    assert [m["round"] for m in survived.metrics] == list(range(12))
    assert " was lost" in (survived.run_dir / "log.txt").read_text()


def test_a_killed_server_starts_again_from_its_checkpoint(cluster, runs):
    world = ["algorithm.name=focus", "rounds=12", "checkpoint.every=3"]
    undisturbed = raylfl.run(QUADRATICS, [*runs, *world])
    struck = []

    def kill(progress):
        if progress.metrics["round"] == 7 and not struck:
            servers = [
                p for p in psutil.process_iter(["cmdline"]) if "ServerActor" in " ".join(p.info["cmdline"] or [])
            ]
            servers[0].send_signal(signal.SIGKILL)
            struck.append(servers[0].pid)

    survived = on_ray(QUADRATICS, runs, *world, "runtime.workers=2", watch=kill)
    assert struck
    assert torch.equal(undisturbed.params, survived.params)
    assert comparable(undisturbed.metrics) == comparable(survived.metrics)


def test_no_actor_outlives_its_run(cluster, runs):
    on_ray(QUADRATICS, runs, "runtime.workers=2", "rounds=1")
    deadline = time.monotonic() + 20
    while workers_of_this_cluster() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not workers_of_this_cluster()


def test_resources_that_cannot_fit_are_refused_with_the_arithmetic():
    with pytest.raises(BadConfig, match=r"3 x 2 CPUs = 6, but the cluster has 4 CPUs: at most 2 workers fit"):
        count_workers(RuntimeConfig(workers=3, cpus_per_worker=2.0), 100, {"CPU": 4.0})
    with pytest.raises(BadConfig, match=r"1 x 0.5 GPUs = 0.5, but the cluster has 8 CPUs and 0 GPUs"):
        count_workers(RuntimeConfig(gpus_per_worker=0.5), 100, {"CPU": 8.0})
    assert count_workers(RuntimeConfig(gpus_per_worker=0.25), 100, {"CPU": 16.0, "GPU": 2.0}) == 8
    assert count_workers(RuntimeConfig(gpus_per_worker=2.0), 100, {"CPU": 16.0, "GPU": 5.0}) == 2
    assert count_workers(RuntimeConfig(), 3, {"CPU": 64.0}) == 3
