"""Clusters whose nodes are lost and join: the bits of one process, for every method, with `workers` given or not."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

import raylfl
from tests.runtime.clusters import QUIET, SMALL, SOON, lean_ray
from tests.runtime.faults import actors, log_of, outcome, wait_until
from tests.runtime.tiny import ONE_BY_ONE, TINY
from tests.shares import also

METHODS = ["fedavg", "focus", "scaffold", "fedaware", "sfl", "push_pull"]
PERFECT = {**TINY, "link": {"name": "perfect"}, "participation": {"name": "full"}, "eval": {"every": 0}}


@pytest.fixture
def cluster():
    """A head without CPUs, and `join(**resources)`, which adds a node."""
    from ray.cluster_utils import Cluster

    store = SMALL["object_store_memory"]

    def join(**resources):
        with lean_ray():
            return cluster.add_node(object_store_memory=store, **{"num_cpus": 1, **resources})

    with lean_ray(**SOON):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
        ray.init(address=cluster.address, **QUIET)
    yield SimpleNamespace(join=join, remove=lambda node: cluster.remove_node(node, allow_graceful=False))
    ray.shutdown()
    cluster.shutdown()


def workers_on(node):
    return actors("WorkerActor", node.all_processes["raylet"][0].process.pid)


@pytest.fixture
def gate(tmp_path):
    """The folder of the gated model: rounds wait while it has a file `closed`, and are slow with a file `slow`."""
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder


def config_of(method, gate, rounds=16):
    """Vectors of 64,000 entries, which Ray keeps in the object store of the node that made them."""
    model = {"class_path": "tests.runtime.tiny.Gated", "init_args": {"folder": str(gate), "width": 8000}}
    own = {"algorithm": {"name": method}, "model": model, "rounds": rounds, "checkpoint": {"every": 5, "keep": 1}}
    return {**PERFECT, **own, "runtime": ONE_BY_ONE["runtime"]}  # each step asks for the gate


def strike(config, runs, cluster, gate, overrides, newcomer):
    """The run of a config that loses one of its two nodes in round 7; a node joins afterwards if `newcomer`."""
    nodes = [cluster.join(), cluster.join()]

    def watch(progress):
        if progress.metrics["round"] == 7 and len(nodes) == 2:
            (gate / "closed").touch()
            wait_until((gate / "waiting").exists, "worker at the gate")
            cluster.remove(nodes.pop())
            (gate / "slow").touch()
            (gate / "closed").unlink()
        if progress.metrics["round"] == 9 and len(nodes) == 1 and newcomer:
            nodes.append(cluster.join())
        if (len(nodes) == 1 and not newcomer) or (newcomer and len(nodes) == 2 and workers_on(nodes[-1])):
            (gate / "slow").unlink(missing_ok=True)  # rounds are slow until the new node has a worker

    return raylfl.run(config, [*runs, "runtime.backend=ray", *overrides], watch)


def cases():
    for method in METHODS:
        for workers in (None, 2):
            for placement in ("auto", "pinned") if method in ("scaffold", "focus") else ("auto",):
                for newcomer in (False, True):
                    name = f"{method}-{workers or 'null'}-{placement}-{'joined' if newcomer else 'alone'}"
                    yield also(method, workers, placement, newcomer, id=name)


@pytest.mark.parametrize(("method", "workers", "placement", "newcomer"), cases())
def test_a_run_that_loses_a_node_goes_on_with_the_same_bits(cluster, runs, gate, method, workers, placement, newcomer):
    config = config_of(method, gate, rounds=40 if newcomer else 16)  # until the new node works
    overrides = [f"runtime.workers={workers or 'null'}", f"runtime.placement={placement}"]
    struck = strike(config, runs, cluster, gate, overrides, newcomer)
    assert not (gate / "slow").exists()
    assert outcome(struck.run_dir) == outcome(raylfl.run(config, runs).run_dir)
    log = log_of(struck.run_dir)
    assert re.search(r"(worker \d|uploads|states) on node \S+ \([\d.]+\) (was|were) lost", log)
    assert "damaged" not in log
    assert "ray::" not in log
    if method == "push_pull":
        assert re.search(r"blocks of graph nodes on node \S+ \([\d.]+\) were lost: starting again from", log)
    assert "the server actor" not in log


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "focus", "fedaware"])
@pytest.mark.parametrize("placement", ["shared", "pinned"])
def test_sums_between_workers_of_several_nodes_survive_the_loss_of_one(cluster, runs, gate, method, placement):
    """By gloo, on three nodes of which one is lost; FedAWARE reads rows. With `shared`, a broadcast and a sum
    take three vectors each: two thirds of one from each worker to the others, and the complete one to the server.
    """
    config = config_of(method, gate) | {"local": {**TINY["local"], "steps": 2}}  # equal shares of the cohort
    cluster.join()
    overrides = ["runtime.sums=gloo", f"runtime.placement={placement}"]
    struck = strike(config, runs, cluster, gate, overrides, newcomer=True)
    assert outcome(struck.run_dir) == outcome(raylfl.run(config, runs).run_dir)
    log = log_of(struck.run_dir)
    assert ("go from worker to worker by gloo" in log) == (method != "fedaware")
    assert "from now on" not in log
    if (method, placement) == ("fedavg", "shared"):
        vector = 4 * (4 * 8000 + 8000 + 3 * 8000 + 3)
        crossed = [row["traffic/between_nodes_bytes"] / vector for row in struck.metrics[2:6]]
        assert crossed == pytest.approx([6.0] * 4, rel=0.02)


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [3, None])
def test_a_run_waits_for_its_first_node_and_takes_those_that_join(cluster, runs, gate, method, workers):
    """One worker of three starts the run. The states of pinned clients move to the workers that join."""
    config, rounds, placement = config_of(method, gate), [], "auto" if method == "push_pull" else "pinned"
    overrides = [f"runtime.workers={workers or 'null'}", f"runtime.placement={placement}", "runtime.backend=ray"]
    logs = lambda: "".join(map(Path.read_text, gate.parent.glob("runs/tiny/*/log.txt")))  # noqa: E731
    (gate / "slow").touch()  # until the run has the second node's workers
    with ThreadPoolExecutor(1) as other:  # nodes are added by the main thread
        run = other.submit(raylfl.run, config, [*runs, *overrides], rounds.append)
        try:
            wait_until(lambda: "waiting for workers: " in logs(), "line about the wait", 60)
            cluster.join()
            wait_until(lambda: rounds or run.done(), "first round", 90)
            cluster.join(num_cpus=2)
            wait_until(lambda: "the run continues on 3 workers" in logs() or run.done(), "workers of both nodes", 120)
        finally:
            (gate / "slow").unlink()
        grown = run.result()
    assert grown.summary["runtime"]["workers"] == 3
    assert outcome(grown.run_dir) == outcome(raylfl.run(config, runs).run_dir)
    assert f"waiting for workers: runtime.workers={workers or 'null'} needs" in logs()
    told = "1 worker: runtime.workers=3 needs 3 x 1 CPUs = 3, but the cluster has 1 CPUs on 2 nodes (0 CPUs free)"
    assert (told in logs()) == (workers == 3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["scaffold", "fedavg", "push_pull"])
def test_a_node_that_joins_and_cannot_start_workers_is_left_out(cluster, runs, gate, method, monkeypatch):
    """As if its torch had no CUDA. The run goes on with the first worker, and one line says why."""
    config, rounds = config_of(method, gate, 30), []
    config["model"]["class_path"] = "tests.runtime.tiny.Choosy"
    cluster.join()
    (gate / "slow").touch()
    with ThreadPoolExecutor(1) as other:  # nodes are added by the main thread
        run = other.submit(raylfl.run, config, [*runs, "runtime.backend=ray", "runtime.workers=2"], rounds.append)
        wait_until(lambda: rounds or run.done(), "first round", 90)
        with monkeypatch.context() as patch:
            patch.setenv("NO_CUDA_HERE", "1")
            cluster.join()
        wait_until(lambda: "could not be started" in log_of(rounds[0].run_dir) or run.done(), "line", 90)
        (gate / "slow").unlink()
        smaller = run.result()
    log = log_of(smaller.run_dir)
    line = r"a worker on node \S+ could not be started: torch is built without CUDA: other workers take its work\n"
    assert len(re.findall(line, log)) == 1
    assert "the run continues on 2 workers instead of 1" in log
    assert outcome(smaller.run_dir) == outcome(raylfl.run(config, runs).run_dir)
