"""Trouble that stays bounded: failing, hanging and dying clients, nobody there, no data, no memory; lost parts."""

from __future__ import annotations

import json
import time

import pytest
import ray
import torch

import raylfl
from raylfl.algorithms.base import ALGORITHMS
from raylfl.errors import BadConfig, ClientFailed, NonFinite
from raylfl.heterogeneity.trace import make_row, write_trace
from raylfl.runtime import check
from raylfl.runtime.worker import Worker
from tests.runtime.faults import actors, log_of, options_of, outcome, wait_until
from tests.runtime.tiny import TINY

PERFECT = {**TINY, "participation": {"name": "full"}, "link": {"name": "perfect"}, "rounds": 3}
CURSED = {  # client 1 owns the points 10..19, and the module fails over one of them
    **PERFECT,
    "model": {
        "class_path": "tests.runtime.tiny.Cursed",
        "init_args": {"raises": 13, "hangs": -1, "dies": -1, "strays": -1},
    },
    "data": {"class_path": "tests.runtime.tiny.Points", "init_args": {"owners": 6}},
    "partition": {"name": "natural"},
    "local": {"steps": 2, "batch_size": "full", "lr": 0.05},
}


NOT_1 = {0: True, 1: False, 2: True, 3: True, 4: True, 5: True}


def run(config, runs, *overrides):
    return raylfl.run(config, [*runs, *overrides])


def trace(result):
    return [json.loads(line) for line in (result.run_dir / "participation.jsonl").read_text().splitlines()]


# -- clients whose work fails -------------------------------------------------------------------------------------


def test_a_client_that_always_fails_ends_the_run_by_name_with_the_original_error(runs, tmp_path):
    with pytest.raises(ClientFailed) as caught:
        run(CURSED, runs, "logging.id=it")
    line = str(caught.value).splitlines()[0]
    assert "client 1 failed in round 0 after 3 attempts: ValueError: cursed" in line
    assert "runtime.on_client_error=drop" in line
    assert "in training_step" in str(caught.value)
    assert caught.value.__notes__ == [f"raylfl resume {tmp_path}/runs/tiny/it goes on with it"]


@pytest.mark.parametrize("algorithm", ["focus", "sfl", "scaffold"])
def test_a_dropped_client_is_a_lost_upload_and_harms_no_other(runs, algorithm):
    """The same bits as a trace in which its uploads are lost."""
    dropped = run(CURSED, runs, "runtime.on_client_error=drop", f"algorithm.name={algorithm}")
    assert all(dict(zip(row["cohort"], row["received"], strict=True)) == NOT_1 for row in trace(dropped))
    assert all("client 1 failed in round" in row["events"][0] for row in dropped.metrics)
    replay = f"participation={{name: trace, path: {dropped.run_dir}/participation.jsonl}}"
    never = ["model.init_args.raises=-1", "runtime.vectorize=never"]
    lost = run(CURSED, runs, f"algorithm.name={algorithm}", replay, *never)
    assert torch.equal(dropped.params, lost.params)


def test_a_run_that_failed_over_a_client_goes_on_by_dropping_it(runs, tmp_path):
    """The failure leaves a checkpoint of the round before, and the policy may change on the way."""
    cohorts = [[0, 2], [2, 3], [1, 4], [0, 1]]
    rows = [make_row(r, c, [1, 1], [True, True], [2, 2]) for r, c in enumerate(cohorts)]
    write_trace(tmp_path / "trace.jsonl", rows)
    config = {**CURSED, "participation": {"name": "trace", "path": str(tmp_path / "trace.jsonl")}, "rounds": 4}
    with pytest.raises(ClientFailed, match="in round 2"):
        run(config, runs, "checkpoint.every=0", "logging.id=it")
    folder = tmp_path / "runs" / "tiny" / "it"
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["round_000002"]
    resumed = raylfl.resume(folder, ["runtime.on_client_error=drop"])
    clean = run(config, runs, "runtime.on_client_error=drop")
    assert outcome(resumed.run_dir) == outcome(clean.run_dir)


def test_a_pooled_algorithm_that_fails_makes_an_idle_round(runs):
    config = {**CURSED, "algorithm": {"name": "centralized"}}
    result = run(config, runs, "runtime.on_client_error=drop", "rounds=2")
    assert all("everybody's data failed" in row["events"][0] for row in result.metrics)
    assert not any(any(row["received"]) for row in trace(result))


def test_a_failure_of_the_servers_half_leaves_no_checkpoint_of_what_it_half_changed(runs, tmp_path):
    """FedVARP writes its table before the parameters turn out not to be finite."""
    config = {**PERFECT, "algorithm": {"name": "fedvarp", "gamma": 1e300}, "checkpoint": {"every": 0}}
    with pytest.raises(NonFinite, match="the server's parameters are not finite"):
        run(config, runs, "logging.id=it")
    assert list((tmp_path / "runs" / "tiny" / "it" / "checkpoints").iterdir()) == []


def test_a_client_that_hangs_is_timed_out_in_process_too(runs):
    hang = [
        "model.init_args={raises: -1, hangs: 13}",
        "runtime.client_timeout=0.2",
        "runtime.client_retries=0",
        "rounds=1",
    ]
    started = time.monotonic()
    with pytest.raises(ClientFailed, match=r"client 1 failed in round 0 after 1 attempts: .*client_timeout=0.2 s"):
        run(CURSED, runs, *hang)
    assert time.monotonic() - started < 20


def test_a_model_that_hangs_over_its_first_batch_is_found_out_before_anything_starts(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "WARM_UP_SECONDS", 2.0)
    with pytest.raises(BadConfig, match=r"Cursed cannot be .*: TimeoutError: no answer within"):
        run(CURSED, runs, "model.init_args={raises: -1, hangs: 0}", "runtime.client_timeout=0.1")
    assert not (tmp_path / "runs").exists()


def test_data_that_cannot_be_fetched_is_a_failure_of_the_client_that_wanted_it(runs):
    config = {**CURSED, "model": TINY["model"], "data": {"class_path": "tests.runtime.tiny.BrokenFile"}}
    with pytest.raises(ClientFailed, match=r"client 1 failed in round 0 after 3 attempts: OSError: .*point 13"):
        run(config, runs)


# -- nobody there, nothing to learn from ---------------------------------------------------------------------------


@pytest.mark.parametrize("entry", list(ALGORITHMS), ids=lambda entry: entry.name)
def test_clients_without_data_and_with_a_single_sample_are_defined(runs, tmp_path, entry):
    """Client 0 has nothing, client 1 one sample, client 2 a last batch of one, under BatchNorm."""
    path = tmp_path / "partition.json"
    path.write_text(json.dumps({"0": [], "1": [0], "2": [1, 2, 3, 4, 5], "3": list(range(6, 20))}))
    config = {
        **TINY,
        "num_clients": None,
        "partition": {"name": "file", "path": str(path)},
        "participation": {"name": "uniform", "size": 4},
        "link": {"name": "perfect"},
        "local": {"steps": 2, "batch_size": 4, "lr": 0.05},
        "algorithm": options_of(entry.name),
        "rounds": 3,
    }
    result = run(config, runs)
    assert torch.isfinite(result.params).all()
    for row in trace(result):
        steps = dict(zip(row["cohort"], row["steps"], strict=True))
        assert steps.get(0, 0) == 0 or ALGORITHMS.get(entry.name).cls.pooled


def test_a_round_with_nobody_leaves_the_model_alone_and_is_written_down(runs):
    nobody = "participation={name: bernoulli, p: 0.0}"
    for name in ("fedavg", "focus", "sfl", "fedadam", "optimal_sampling"):
        if name == "optimal_sampling":
            nobody = "participation={name: uniform, size: 2, availability: {name: bernoulli, p: 0.0}}"
        result = run(PERFECT, runs, nobody, f"algorithm.name={name}")
        fresh = run(PERFECT, runs, nobody, f"algorithm.name={name}", "rounds=0")
        assert torch.equal(result.params, fresh.params)
        assert [row["cohort"] for row in trace(result)] == [[], [], []]
        assert [m["cohort/sampled"] for m in result.metrics] == [0, 0, 0]


# -- memory --------------------------------------------------------------------------------------------------------


def test_a_micro_cohort_that_does_not_fit_goes_in_halves(runs, monkeypatch):
    """A device with memory for two clients: the work is done two by two, and the result is the same."""
    config = {**PERFECT, "model": {**TINY["model"], "init_args": {"norm": False, "dropout": 0.0}}, "num_clients": 16}
    plain = run(config, runs, "runtime.micro_cohort=4")
    solve, sizes = Worker._solve, []

    def cramped(self, task, down, states):
        if len(task.clients) > 2:
            raise torch.OutOfMemoryError("tried to allocate 80 GiB")
        sizes.append(len(task.clients))
        return solve(self, task, down, states)

    monkeypatch.setattr(Worker, "_solve", cramped)
    halved = run(config, runs, "runtime.micro_cohort=4")
    assert set(sizes) == {2}
    torch.testing.assert_close(halved.params, plain.params)
    assert trace(halved) == trace(plain)


def test_one_client_too_big_for_the_gpu_is_said_with_the_measured_peak(runs, monkeypatch):
    def full(self, task, down, states):
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")

    monkeypatch.setattr(Worker, "_solve", full)
    with pytest.raises(
        ClientFailed, match=r"GPU out of memory: this worker's peak was .* GiB \(lower local.batch_size"
    ):
        run(PERFECT, runs)


# -- on Ray --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kill_file(tmp_path_factory):
    return tmp_path_factory.mktemp("faults") / "kill"


@pytest.fixture(scope="module")
def cluster(kill_file):
    """A head with room for two workers, whose processes know where kill points are announced."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYLFL_FAULT", str(kill_file))
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        head = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def on_ray(config, runs, *overrides, watch=None):
    return raylfl.run(config, [*runs, "runtime.backend=ray", "runtime.workers=2", *overrides], watch)


def test_parts_killed_before_and_after_their_work_and_the_server_between_row_and_checkpoint(cluster, runs, kill_file):
    """A worker before its work; one that has done it and dies before anybody saw; then the server."""
    config = {**PERFECT, "algorithm": {"name": "focus"}, "rounds": 40, "checkpoint": {"every": 10, "keep": 1}}
    clean = run(config, runs)
    kill_file.write_text("work:3\nworked:5\nlog:12")
    struck = on_ray(config, runs)
    assert kill_file.read_text() == ""
    assert outcome(struck.run_dir) == outcome(clean.run_dir)
    log = log_of(struck.run_dir)
    assert log.count("its work goes elsewhere") == 2
    assert "resumed at round 10" in log


def test_deadly_and_hanging_clients_are_dropped_and_harm_no_other(cluster, runs):
    """Client 1 kills whoever runs it, client 4 never returns: the bits of a run in which both uploads are lost."""
    curse = "model.init_args={raises: -1, dies: 13, hangs: 43}"
    bounds = ["runtime.on_client_error=drop", "runtime.client_timeout=5", "runtime.client_retries=0", "rounds=1"]
    struck = on_ray(CURSED, runs, curse, *bounds, "algorithm.name=focus")
    received = dict(zip(trace(struck)[0]["cohort"], trace(struck)[0]["received"], strict=True))
    assert received == {0: True, 1: False, 2: True, 3: True, 4: False, 5: True}
    events = " ".join(struck.metrics[0]["events"])
    assert "client 1 failed in round 0 after 1 attempts: the worker was lost" in events
    assert "client 4 failed in round 0 after 1 attempts: no answer within runtime.client_timeout=5 s" in events
    replay = f"participation={{name: trace, path: {struck.run_dir}/participation.jsonl}}"
    lost = run(
        CURSED, runs, "model.init_args.raises=-1", replay, "algorithm.name=focus", "rounds=1", "runtime.vectorize=never"
    )
    assert torch.equal(struck.params, lost.params)


def test_a_module_that_returns_no_loss_is_a_mistake_of_the_config_even_on_ray(cluster, runs):
    with pytest.raises(
        BadConfig, match=r"training_step returned a tensor of shape \(10, 4\), but must return the loss"
    ):
        on_ray(CURSED, runs, "model.init_args={raises: -1, strays: 13}")


def workers_on(node):
    """Ids of the processes in which this node runs worker actors."""
    return {worker.pid for worker in actors("WorkerActor", node.all_processes["raylet"][0].process.pid)}


def test_a_lost_node_costs_nothing_but_time_and_a_new_one_is_used(cluster, runs, tmp_path):
    """Two workers' states, too large to travel inside replies, lie on the node that goes down in mid-round."""
    seen = tmp_path / "seen"
    seen.mkdir()
    config = {**PERFECT, "algorithm": {"name": "focus"}, "rounds": 30, "checkpoint": {"every": 5, "keep": 1}}
    config["model"] = {"class_path": "tests.runtime.tiny.Gated", "init_args": {"folder": str(seen), "width": 8000}}
    clean = run(config, runs)
    small = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
    nodes = [cluster.add_node(**small)]
    wait_until(lambda: ray.cluster_resources()["CPU"] >= 4, "second node")

    def watch(progress):
        if progress.metrics["round"] == 7 and len(nodes) == 1:
            (seen / "closed").touch()  # rounds wait until the new node is there
            assert workers_on(nodes[0]) & ids(seen)
            cluster.remove_node(nodes[0], allow_graceful=False)
            nodes.append(cluster.add_node(**small))
            wait_until(lambda: len(workers_on(nodes[1])) == 2, "worker on the new node")
            (seen / "closed").unlink()

    struck = on_ray(config, runs, "runtime.workers=4", "runtime.cpus_per_worker=1", watch=watch)
    assert outcome(struck.run_dir) == outcome(clean.run_dir)
    assert len(nodes) == 2
    assert "was lost" in log_of(struck.run_dir)


def ids(folder):
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()}
