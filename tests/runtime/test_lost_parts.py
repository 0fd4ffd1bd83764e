"""Lost parts of a cluster: workers, the server, a node; clients that kill or block their worker.

Workers that start slowly, not at all, or die as they start.
"""

import json
import os
import re
import signal

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import RaySystemError

import raylfl
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.data.client_files import index_of
from raylfl.errors import BadConfig, DataMissing, RaylflError
from raylfl.runtime.ray import worker_pool
from raylfl.runtime.ray.cluster import cluster_for
from raylfl.runtime.ray.stored import StoredExperiment
from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.ray.worker_pool import WorkerPool
from tests.runtime.bad_starts import Differing, Dying, Lacking, Slow
from tests.runtime.clusters import QUIET, SMALL, SOON, lean_ray
from tests.runtime.faults import actors, log_of, outcome, wait_until
from tests.runtime.test_faults import CURSED, PERFECT, replay, run, trace
from tests.runtime.tiny import ONE_BY_ONE, Points


@pytest.fixture(scope="module")
def cluster(kill_folder):
    """A head with room for two workers, in whose processes kill points are active."""
    from ray.cluster_utils import Cluster

    with lean_ray(RAYLFL_FAULT=str(kill_folder), **SOON):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"red": 1}, **SMALL})
        ray.init(address=cluster.address, **QUIET)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def kept(cluster):
    """The cluster, which keeps the actors of one run for the next, as in a comparison, because their start is slow."""
    with cluster_for(RuntimeConfig()):
        yield cluster


def on_ray(config, runs, *overrides, watch=None):
    return raylfl.run(config, [*runs, "runtime.backend=ray", "runtime.workers=2", *overrides], watch)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [("focus", []), ("push_pull", []), ("scaffold", ["runtime.placement=pinned", "runtime.vectorize=never"])],
)
def test_parts_killed_before_and_after_their_work_and_the_server_between_row_and_checkpoint(
    kept, runs, kill_folder, algorithm, overrides
):
    """A worker before its work, one after its work and before the result is fetched; then the server; at last a worker
    from outside, at any moment. Workers hold the rows of push_pull's nodes and the states of scaffold's clients.
    """
    config = {**PERFECT, "algorithm": {"name": algorithm}, "rounds": 16, "checkpoint": {"every": 5, "keep": 1}}
    clean = run(config, runs, *overrides[1:])
    for point in ("work:3", "worked:5", "log:12"):
        (kill_folder / point).touch()
    struck_from_outside = []

    def strike(progress):
        if progress.metrics["round"] == 7 and not struck_from_outside:
            struck_from_outside.append(actors("WorkerActor")[0])
            struck_from_outside[0].send_signal(signal.SIGKILL)

    struck = on_ray(config, runs, *overrides, watch=strike)
    assert not list(kill_folder.iterdir())
    assert struck_from_outside
    assert outcome(struck.run_dir) == outcome(clean.run_dir)
    log = log_of(struck.run_dir)
    assert log.count("other workers take its work") in (2, 3)  # the last worker may have had no work
    assert "resumed at round 10" in log


def test_deadly_and_hanging_clients_are_dropped_and_harm_no_other(kept, runs):
    """Client 1 kills its worker, and client 4 never returns: the run has the bits of one with both uploads lost."""
    curse = "model.init_args={raises: -1, dies: 13, hangs: 43}"  # no point of these clients is in the test set
    bounds = ["runtime.on_client_error=drop", "runtime.client_timeout=5", "runtime.client_retries=0", "rounds=1"]
    struck = on_ray(CURSED, runs, curse, *bounds, "algorithm.name=focus")
    received = dict(zip(trace(struck)[0]["cohort"], trace(struck)[0]["received"], strict=True))
    assert received == {client: client not in (1, 4) for client in range(6)}
    events = " ".join(struck.metrics[0]["events"])
    assert "client 1 failed in round 0 after 1 attempts: the worker was lost" in events
    assert "client 4 failed in round 0 after 1 attempts: no answer within 5 s (runtime.client_timeout)" in events
    never = ["model.init_args.raises=-1", "runtime.vectorize=never"]
    lost = run(CURSED, runs, *never, replay(struck), "algorithm.name=focus", "rounds=1")
    assert torch.equal(struck.params, lost.params)


def test_a_module_that_returns_no_loss_is_a_mistake_of_the_config_even_on_ray(kept, runs):
    words = r"training_step returned a tensor of shape \(10, 4\), but must return the loss"
    with pytest.raises(BadConfig, match=words):
        on_ray(CURSED, runs, "model.init_args={raises: -1, strays: 13}")


def added(cluster, name="blue"):
    with lean_ray():
        node = {"num_cpus": 2, "resources": {name: 1}, "object_store_memory": SMALL["object_store_memory"]}
        return cluster.add_node(**node)


@pytest.fixture(scope="module")
def nodes(cluster):
    """The nodes beside the head; the last is alive."""
    nodes = [added(cluster)]
    wait_until(lambda: ray.cluster_resources()["CPU"] >= 4, "second node")
    return nodes


def workers_on(node):
    """Ids of the processes in which this node runs worker actors."""
    return {worker.pid for worker in actors("WorkerActor", node.all_processes["raylet"][0].process.pid)}


TWO = ["runtime.workers=2", "runtime.cpus_per_worker=2"]  # one worker on each node


def gated(folder, **more):
    return {"class_path": "tests.runtime.tiny.Gated", "init_args": {"folder": str(folder), **more}}


def test_a_lost_node_costs_nothing_but_time_and_a_new_one_is_used(cluster, nodes, runs, tmp_path):
    """Pinned clients' samples and states, too large to travel inside replies, lie on the node that goes down in
    mid-round. The run has the bits of one process. Clients are pinned by default where they run one by one.

    A vector is x or y. Before the loss x crosses to one node; the six uploads, of which no two that the tree adds first
    have the same worker, cross by half, and half of their sum to the server.
    """
    seen = tmp_path / "seen"
    seen.mkdir()
    config = {**PERFECT, "algorithm": {"name": "focus"}, "rounds": 50, "checkpoint": {"every": 5, "keep": 1}}
    config |= {"model": gated(seen, width=8000), "runtime": ONE_BY_ONE["runtime"]}  # each step asks for the gate
    clean = run(config, runs)
    before = len(nodes)

    def watch(progress):
        if progress.metrics["round"] == 7 and len(nodes) == before:
            (lost,) = sorted(workers_on(nodes[-1]) & ids(seen))[:1]
            (seen / f"closed.{lost}").touch()  # a call is in flight on the node that goes down
            wait_until((seen / "waiting").exists, "worker at the gate")
            (seen / "closed").touch()  # rounds wait until the new node is there
            cluster.remove_node(nodes[-1], allow_graceful=False)
            nodes.append(added(cluster))
            wait_until(lambda: workers_on(nodes[-1]), "worker on the new node")
            (seen / "slow").touch()  # until a worker on the new node takes part
            (seen / "closed").unlink()
        if (seen / "slow").exists() and workers_on(nodes[-1]) & ids(seen):
            (seen / "slow").unlink()

    struck = on_ray(config, runs, *TWO, watch=watch)
    assert outcome(struck.run_dir) == outcome(clean.run_dir)
    assert struck.summary["runtime"]["placement"] == "pinned"
    crossed = [row["traffic/between_nodes_bytes"] for row in struck.metrics[1:3]]  # no checkpoint, no evaluation
    assert crossed == pytest.approx([(1 + 6 / 2 + 1 / 2) * 4 * struck.params.numel()] * 2, rel=0.005)
    assert len(nodes) == before + 1
    assert not (seen / "slow").exists()
    log = log_of(struck.run_dir)
    assert re.search(r"worker \d on node \S+ \([\d.]+\) was lost \(its process ended", log)
    assert re.search(
        r"6 clients on 2 workers, on CPUs, on (2 nodes|1 node so far); each worker reads only its own clients' "
        r"samples; the server on node \S+ \([\d.]+\); all samples \(0\.0 MB\) are in the process that started the run",
        log,
    )


@pytest.mark.exhaustive
def test_clients_work_on_the_node_that_has_their_data(nodes, runs, tmp_path):
    """Two clients on the red node, the head, and one on the blue one: the bits of a process that reads all folders."""
    points, seen, private = Points(), tmp_path / "seen", tmp_path / "private"
    seen.mkdir()
    for k, client in enumerate(("a0", "a1", "b0")):
        (private / client).mkdir(parents=True)
        np.save(private / client / "x.npy", points.x[20 * k : 20 * k + 20].numpy())
        np.save(private / client / "y.npy", points.targets[20 * k : 20 * k + 20].numpy())
    index, blue, data = index_of(private), [], {"name": "client_files", "init_args": {"path": str(private)}}
    config = {**PERFECT, "model": gated(seen), "data": data, "partition": {"name": "natural"}, "num_clients": 3}

    def params(name, carry_out):
        (tmp_path / name).write_text(json.dumps(index))
        data["init_args"]["index"] = [str(tmp_path / name)]
        return carry_out(config, runs).params

    here = params("here", run)
    for name, client in index["clients"].items():
        client["node"] = "blue" if name == "b0" else "red"
    there = params("there", lambda *args: on_ray(*args, *TWO, watch=lambda _: blue.append(workers_on(nodes[-1]))))
    assert torch.equal(there, here)
    workers = ids(seen) - {os.getpid()}
    assert len(workers) == 2
    assert len(workers & blue[0]) == 1  # a worker refuses samples that are not those of its clients


def ids(folder):
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()}


# -- workers that start slowly, not at all, or die as they start ---------------------------------------------------


@pytest.fixture
def start(cluster, monkeypatch):
    """`start(cls, argument, **options)` makes a pool of one such worker; (pool, its notices)."""
    monkeypatch.setattr(worker_pool, "NOTICE_SECONDS", 0.5)
    monkeypatch.setattr(worker_pool, "MOST_STARTS", 2)
    actors, notices = [], []

    def call(cls, argument, **options):
        actors.append(ray.remote(cls).options(max_restarts=-1, **{"num_cpus": 0, **options}).remote(argument))
        return WorkerPool(actors, StoredExperiment(None), notices.append, TrafficCounter()), notices

    yield call
    for actor in actors:
        ray.kill(actor)


def test_the_wait_for_a_slow_worker_is_reported(start):
    pool, notices = start(Slow, 2.0)
    assert pool.available() == [0]
    assert notices[0].startswith("waiting for a worker for ")


def test_a_worker_that_dies_each_time_it_starts_ends_the_run(start):
    with pytest.raises(RaylflError, match=r"worker 0 died [3-5] times as it started"):
        start(Dying, 0.0)


@pytest.mark.parametrize(
    ("kind", "lack", "error", "words"),
    [
        (Lacking, "elsewhere", RaylflError, "No module named 'elsewhere' in the cluster's Python"),
        (
            Differing,
            (DataMissing, "x.npy is missing\nset RAYLFL_DATA"),
            BadConfig,
            "x.npy is missing\nset RAYLFL_DATA$",
        ),
        (Differing, (RaySystemError, "No module named 'mine'"), BadConfig, "No module named 'mine' in the cluster's"),
    ],
)
def test_what_a_node_lacks_is_named(start, kind, lack, error, words):
    where = r"^a worker on node [\d.]+" if kind is Differing else "worker 0"
    with pytest.raises(error, match=f"{where} could not be started: {words}"):
        start(kind, lack)
