"""Runs on Ray have the bits of runs in process, for any number of workers, after deaths of workers and server."""

import fcntl
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
import ray
import torch

import raylfl
from raylfl.algorithms import ALGORITHMS
from raylfl.cli import main
from raylfl.core.algorithm import Algorithm
from raylfl.runtime.ray import backend as ray_backend
from raylfl.runtime.ray import group as ray_group
from raylfl.runtime.ray import stored as ray_stored
from raylfl.runtime.ray.backend import RayBackend
from raylfl.runtime.ray.connection import DIRECT
from raylfl.runtime.ray.group import Exchange, WorkerGroup
from raylfl.runtime.ray.stored import StoredExperiment, StoredSamples
from raylfl.runtime.ray.worker_pool import WorkerPool
from raylfl.runtime.session import Session
from raylfl.runtime.workers.task import REPORT
from tests.runtime import own_script
from tests.runtime.clusters import QUIET, SMALL, lean_ray
from tests.runtime.faults import actors, carry_out, killed, log_of, options_of, outcome, strike, wait_until
from tests.runtime.test_evaluation import LOGGED
from tests.runtime.test_run import DIGITS
from tests.runtime.tiny import ONE_BY_ONE, TINY
from tests.runtime.veterans import Veteran
from tests.shares import also
from tests.startup.forks import LEAN


@pytest.fixture(scope="module")
def cluster(kill_folder):
    """One small cluster for the whole file, in whose processes kill points are active: starting Ray is slow."""
    with lean_ray(RAYLFL_FAULT=str(kill_folder)):
        ray.init("local", num_cpus=2, **SMALL, **QUIET)
    yield
    ray.shutdown()


LOSSY = ["link.name=bernoulli", "link.q=0.3", "local.steps={list: [1, 2, 3, 4, 5, 6, 7, 8]}"]


def test_runs_on_ray_that_are_compared_share_their_actors_and_have_the_bits_of_local_ones(cluster, runs):
    """From the config to the records, with the server in an actor of its own; no actor outlives them. The second run
    uses the processes of the first with their loaded modules.
    """
    overrides = [*runs, *LOSSY, "rounds=2", "runtime.backend=ray", "runtime.cpus_per_worker=0.5", "runtime.workers=1"]
    names = ["scaffold", "sfl"]
    seen, folders = [], []

    def watch(progress):
        seen.append((progress.experiment.algorithm, frozenset(actors("WorkerActor")), frozenset(actors("ServerActor"))))
        folders.append(progress.run_dir)
        for folder in set(folders) - {progress.run_dir}:  # finished runs may be resumed
            with open(folder / ".writing", "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    results = raylfl.compare(DIGITS, overrides, names, watch)
    assert len({id(algorithm) for algorithm, _, _ in seen}) == 2
    ((workers, server),) = {(workers, server) for _, workers, server in seen}
    assert (len(workers), len(server)) == (1, 1)
    for name, result in zip(names, results, strict=True):
        alone = raylfl.run(DIGITS, [*runs, *LOSSY, "rounds=2", f"algorithm.name={name}"])
        assert outcome(result.run_dir) == outcome(alone.run_dir)
        assert (result.run_dir / "partition.json").read_bytes() == (alone.run_dir / "partition.json").read_bytes()
    wait_until(lambda: not actors("WorkerActor") and not actors("ServerActor"), "end of the actors")


def test_what_a_script_defines_reaches_the_workers_and_another_process_resumes_it_on_trust(cluster, tmp_path):
    """The script joins the cluster, and this process resumes its run without Ray."""
    (tmp_path / "script.py").write_text(LEAN + Path(own_script.__file__).read_text())
    environment = {"PYTHONPATH": str(Path(raylfl.__file__).parents[1])}
    environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "__main__.Net, " in done.stderr or "__main__.Mine" in done.stderr
    folder = tmp_path / "runs" / "tiny" / "a"
    assert main(["resume", str(folder), "rounds=6", "runtime.backend=local", "--trust"]) == 0
    said = ["algorithm={name: fedprox, mu: 0.1}", "participation={name: uniform, size: 3}"]
    twin = raylfl.run(ONE_BY_ONE, [f"logging.dir={tmp_path}/runs", *said])
    assert torch.equal(raylfl.load(folder, trust=True).params, twin.params)


@pytest.fixture(scope="module")
def veterans(cluster):
    """Workers that serve one experiment after another, because starting their processes is slow."""
    actors = [ray.remote(Veteran).options(num_cpus=0, max_restarts=-1).remote() for _ in range(3)]
    yield actors
    for actor in actors:
        ray.kill(actor)


def session_on(actors):
    """The session of a run with these workers, the round loop in this process."""

    def rows(experiment, run_dir, resume, fault):
        backend = RayBackend(experiment, StoredExperiment.put(experiment, len(actors)), actors, run_dir.log)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in the server actor
        yield from Session(experiment, backend, run_dir, fault).rows(resume)
        torch.set_num_threads(threads)

    return rows


GRAPH = {
    "base": ["data/synthetic_images", "model/mlp"],
    "num_clients": 64,
    "rounds": 3,
    "eval": {"every": 0},
    "algorithm": "push_pull",
    "topology": "exponential",
    "participation": {"name": "bernoulli", "p": 0.8},
    "local": {"steps": 2, "batch_size": 4},
    "link": {"name": "bernoulli", "q": 0.1},
    "runtime": {"backend": "local"},
    "logging": {"report": False},
}
CASES = {
    "metric objects": (LOGGED, ["eval.batch_size=7"]),  # states of seven batches from three workers, merged
    "nodes that send two rows each": (GRAPH, []),  # blocks exchange them by reference; here all are mixed at once
}


@pytest.mark.parametrize("case", CASES)
def test_runs_on_workers_have_the_bits_of_one_process(veterans, tmp_path, case):
    carry_out(CASES[case][0], tmp_path / "here", CASES[case][1])
    carry_out(CASES[case][0], tmp_path / "there", CASES[case][1], rows=session_on(veterans[:3]))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")


def one_of_each_kind():
    """Every algorithm, one by one or vectorised in turn; the first of each kind in the usual suite.

    Kinds differ for workers: in the messages, states, probes, full gradients and cut models that they use.
    """
    seen = set()
    for place, entry in enumerate(ALGORITHMS):
        powers = ("init_clients", "probabilities", "samples_by_norm", "full_gradient")
        own = tuple(getattr(entry.cls, power) is not getattr(Algorithm, power) for power in powers)
        kind = (type(entry.cls.pattern), "cut" in options_of(entry.name), own)
        yield pytest.param(entry.name, place % 2 == 0, marks=[pytest.mark.exhaustive] if kind in seen else [])
        seen.add(kind)


@pytest.mark.parametrize(("algorithm", "one_by_one"), list(one_of_each_kind()))
def test_every_algorithm_gives_the_same_bits_with_3_workers(veterans, tmp_path, algorithm, one_by_one):
    """The runs are in process and on Ray's workers, which take random times and so end in random order."""
    model = {"class_path": "tests.runtime.tiny.Dawdling"}  # with BatchNorm
    config = {**TINY, "algorithm": options_of(algorithm), "model": model, "rounds": 3, "num_clients": 12}
    config |= {"participation": {"name": "uniform", "size": 8}, "eval": {"every": 2, "global": True, "batch_size": 5}}
    config["runtime"] = {**ONE_BY_ONE["runtime"], "vectorize": "never" if one_by_one else "auto"}
    carry_out(config, tmp_path / "here")
    carry_out(config, tmp_path / "there", rows=session_on(veterans))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")


def test_pinned_clients_give_the_bits_of_shared_data_on_1_and_3_workers(veterans, tmp_path, monkeypatch):
    """The model has BatchNorm and dropout; uploads are lost; each worker refuses samples of other workers' clients. The
    partial sums count as long vectors, which one worker joins for the server.
    """
    monkeypatch.setenv(DIRECT, "0")
    config = {**TINY, "algorithm": {"name": "scaffold"}, "partition": {"name": "quantity"}}
    config |= {"eval": {"every": 2, "global": True, "clients": True, "diversity": True, "batch_size": 7}}
    config |= {"runtime": {"backend": "local", "vectorize": "never"}}
    carry_out(config, tmp_path / "here")
    config |= {"runtime": {"placement": "pinned"}}
    carry_out(config, tmp_path / "debugged", ["runtime.backend=local"])
    assert outcome(tmp_path / "debugged") == outcome(tmp_path / "here")
    for workers in (1, 3):
        carry_out(config, tmp_path / str(workers), rows=session_on(veterans[:workers]))
        assert outcome(tmp_path / str(workers)) == outcome(tmp_path / "here")


STATES = {  # every kind of client state
    "sfl": ["local.buffers=local"],  # a ring
    "fedavg": ["local.optimizer=adamw", "local.optimizer_state=kept", "local.buffers=local"],
    "scaffnew": [],  # the server updates them after its step
}


@pytest.mark.parametrize("algorithm", STATES)
def test_states_of_pinned_clients_survive_kills_and_other_numbers_of_workers(veterans, tmp_path, algorithm):
    """Killed in two phases, with 3, 2 and then 1 workers."""
    overrides = STATES[algorithm]
    config = {**TINY, "algorithm": {"name": algorithm}, "checkpoint": {"every": 1, "keep": 2}, "rounds": 8}
    config |= {"runtime": {"backend": "local", "vectorize": "never"}}
    carry_out(config, tmp_path / "here", overrides)
    pinned = [*overrides, "runtime.backend=ray", "runtime.placement=pinned"]
    for workers, fault in ((3, ("collect", 3)), (2, ("checkpoint", 5))):
        rows = session_on(veterans[:workers])
        call = partial(carry_out, config, tmp_path / "it", pinned, workers < 3, strike(*fault), rows)
        killed(call)
    carry_out(config, tmp_path / "it", pinned, True, rows=session_on(veterans[:1]))
    assert outcome(tmp_path / "it") == outcome(tmp_path / "here")


def test_states_that_are_too_many_for_the_server_go_to_the_object_store(veterans, tmp_path, monkeypatch):
    """The object store can spill; it holds one state per client, with the buffers in a ring."""
    config = {**TINY, "algorithm": {"name": "sfl"}, "rounds": 3, "link": {"name": "perfect"}}
    config |= {"model": {"class_path": "tests.runtime.tiny.Net"}, "local": {**TINY["local"], "buffers": "local"}}
    carry_out(config, tmp_path / "few", rows=session_on(veterans[:2]))
    stored, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: stored.append(value) or put(value))
    monkeypatch.setattr(ray_backend, "HEAP", 0)
    carry_out(config, tmp_path / "many", rows=session_on(veterans[:2]))
    assert len([value for value in stored if isinstance(value, dict)]) == 3 * 3
    assert outcome(tmp_path / "many") == outcome(tmp_path / "few")


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "sfl", "dsgd", "fedavg, evaluated"])
def test_traffic_is_what_the_calls_of_each_round_carry(veterans, tmp_path, algorithm):
    """Counted by hand: three rounds of six clients on two workers, one call per worker and round, or a ring."""
    name, _, evaluated = algorithm.partition(", ")
    config = {**TINY, "algorithm": {"name": name}, "rounds": 3, "link": {"name": "perfect"}}
    config |= {"model": {"class_path": "tests.runtime.tiny.Net", "init_args": {"norm": False}}}
    config |= {"participation": {"name": "full"}, "eval": {"every": 2 if evaluated else 0, "inconsistency": False}}
    config["runtime"] = {"backend": "local", "vectorize": "never"}
    carry_out(config, tmp_path / "here")
    carry_out(config, tmp_path / "there", rows=session_on(veterans[:2]))
    model, reports = 4 * (4 * 6 + 6 + 6 * 3 + 3), 6 * REPORT.itemsize
    expected = {  # (sent, received) in each round
        # the tree adds 0 + 3, 1 + 4, 2 + 5 first; workers have {0, 3, 2} and {5, 1, 4}, and send two vectors a sum
        "fedavg": [(2 * model, 4 * model + reports)] * 3,
        # x and c go down; three sums come back (both uploads, and the mean update of the metrics); each c_i comes back
        # in a round and is sent again in the next
        "scaffold": [(2 * 2 * model + sent * model, (3 * 4 + 6) * model + reports) for sent in (0, 6, 6)],
        # from the server to the first client, and from each client to the next
        "sfl": [(6 * model, model + reports)] * 3,
        # blocks {0, 1}, {2, 3}, {4} and {5} of a ring, in turn on two workers: 8 messages between them; the server gets
        # the sum of each block's rows, with numbers of 8 bytes: the sizes of 6 objects, as {4} and {5} send one to two
        "dsgd": [(8 * model, reports + 4 * (model + 2 * 8) + 4 * 8 + 6 * 8)] * 3,
        # x goes down once more in the first and the last round, to the worker that has the test set's only batch
        "fedavg, evaluated": [(sent * model, 4 * model + reports) for sent in (3, 2, 3)],
    }
    assert traffic(tmp_path / "there") == [(*counts, 0) for counts in expected[algorithm]]  # nothing between nodes
    assert traffic(tmp_path / "here") == [(0, 0, 0)] * 3


def test_samples_in_many_pieces_change_no_bit_and_are_freed(veterans, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_stored, "PIECE", 100)  # bytes, four samples
    pieces, real = [], StoredSamples.__new__
    monkeypatch.setattr(
        StoredSamples,
        "__new__",
        lambda cls, refs, size: pieces.append((size, [r.hex() for r in refs])) or real(cls, refs, size),
    )
    config = {**TINY, "algorithm": {"name": "scaffold"}}
    carry_out({**config, "runtime": {"backend": "local", "vectorize": "never"}}, tmp_path / "here")
    config["runtime"] = {"placement": "pinned", "vectorize": "never"}
    carry_out(config, tmp_path / "there", rows=session_on(veterans[:2]))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    assert [len(refs) for _, refs in pieces] == [-(-size // 4) for size, _ in pieces]
    assert sum(size for size, _ in pieces) == 60
    held = ray._private.worker.global_worker.core_worker.get_all_reference_counts
    wait_until(lambda: held().keys().isdisjoint(ref for _, refs in pieces for ref in refs), "end of all references")


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def traffic(folder):
    ways = ("sent", "received", "between_nodes")
    return [tuple(row[f"traffic/{way}_bytes"] for way in ways) for row in rows_of(folder)]


# -- sums that go from worker to worker, by gloo on CPUs ---------------------------------------------------------------

FULL = {"participation": {"name": "full"}, "link": {"name": "perfect"}, "eval": {"every": 0}}
LINE = "long sums of uploads go from worker to worker by gloo"


@pytest.fixture
def joins(monkeypatch):
    """Vectors count as long; a list of the number of workers in each exchange so far, 0 if it failed.

    After each exchange, lost workers are awaited.
    """
    monkeypatch.setenv(DIRECT, "0")
    seen, joined = [], WorkerGroup.joined

    def watched(self, resident, count):
        result, pool = joined(self, resident, count), self._pool
        seen.append(0 if result is None else len(self._members))
        wait_until(lambda: len(pool.ready()) == len(pool), "restart of a worker", seconds=60)
        return result

    monkeypatch.setattr(WorkerGroup, "joined", watched)
    return seen


def config_of(algorithm, **options):
    config = {**TINY, "algorithm": {"name": algorithm}, "rounds": 4, **options}
    return config | {"runtime": {"backend": "local", "vectorize": "never", "sums": "gloo"}}


@pytest.mark.parametrize(("algorithm", "summed"), [("scaffold", True), also("fedaware", False)])
def test_runs_have_the_bits_of_one_process_with_2_and_3_workers(veterans, joins, tmp_path, algorithm, summed):
    """Random cohorts, lost uploads, BatchNorm's buffers; `eval.every` reads rows of no round."""
    config = config_of(algorithm)
    carry_out(config, tmp_path / "here")
    for count, placement in ((2, "pinned"), (3, "shared")):
        overrides = [f"runtime.placement={placement}"]
        carry_out(config, tmp_path / str(count), overrides, rows=session_on(veterans[:count]))
        assert outcome(tmp_path / str(count)) == outcome(tmp_path / "here")
        assert (LINE in log_of(tmp_path / str(count))) == summed
    assert joins == ([2] * 4 + [3] * 4) * summed


def test_vectors_do_not_travel_through_the_object_store(veterans, joins, tmp_path, monkeypatch):
    """The bytes of all objects that workers make, as Ray records them: each round one vector of 256 kB, in pieces."""
    sizes, results = [], WorkerPool.results

    def weighed(pool, sent):
        out = results(pool, sent)
        summing = [call for call in sent if call.call.method not in ("traits", "state_dict")]
        records = ray.experimental.get_local_object_locations([ref for call in summing for ref in call.references])
        sizes[-1] += sum(record["object_size"] or 0 for record in records.values())
        return out

    monkeypatch.setattr(WorkerPool, "results", weighed)
    model = {"class_path": "tests.runtime.tiny.Net", "init_args": {"norm": False, "width": 8000}}
    vector, total = 4 * 8000 * 8 + 12, {}
    for sums in ("object_store", "gloo"):
        sizes.append(0)
        config = config_of("fedavg", model=model, **FULL)
        carry_out(config, tmp_path / sums, [f"runtime.sums={sums}"], rows=session_on(veterans[:3]))
        total[sums] = sizes[-1]
    assert outcome(tmp_path / "gloo") == outcome(tmp_path / "object_store")
    assert joins == [3] * 4
    assert 4 * vector < total["gloo"] < 4.2 * vector
    assert total["object_store"] > 4 * 4 * vector  # sums of three workers, and the joined one
    received = [row["traffic/received_bytes"] for row in rows_of(tmp_path / "gloo")]
    assert all(vector < each < 1.01 * vector for each in received)


def test_workers_killed_in_mid_round_change_no_bit(veterans, joins, kill_folder, tmp_path):
    """One in an exchange of round 1, one before its work of round 3, one after that of round 5."""
    config = config_of("scaffold", **FULL) | {"rounds": 8}
    carry_out(config, tmp_path / "here")
    for point in ("exchange:1", "work:3", "worked:5"):
        (kill_folder / point).touch()
    carry_out(config, tmp_path / "there", rows=session_on(veterans[:3]))
    assert not list(kill_folder.iterdir())
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    log = log_of(tmp_path / "there")
    assert log.count("other workers take its work") == 3
    (line,) = [line for line in log.splitlines() if "could not go from worker to worker" in line]
    assert line.endswith("the work is repeated")
    assert "the worker was lost: its process ended" in line
    assert joins == [3, 0, 3, 3, 2, 3, 2, 3, 3]


def test_a_worker_that_ray_restarts_between_two_rounds_joins_a_new_group(veterans, tmp_path, monkeypatch, joins):
    """The server does not notice the restart: the new process runs its tasks like the former one."""
    watched, struck = WorkerGroup.joined, []

    def strike(self, resident, count):
        result = watched(self, resident, count)
        if not struck:
            struck.append(psutil.Process(ray.get(veterans[0].pid.remote())))
            struck[0].kill()
            struck[0].wait()
            wait_until(lambda: answers(veterans[0]), "restart of the worker", 60)
        return result

    monkeypatch.setattr(WorkerGroup, "joined", strike)
    config = config_of("fedavg", **FULL)
    carry_out(config, tmp_path / "here")
    carry_out(config, tmp_path / "there", rows=session_on(veterans[:3]))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    assert joins == [3] * 4
    assert "lost" not in log_of(tmp_path / "there")


@pytest.mark.exhaustive  # 40 seconds, most of them gloo's own patience
def test_a_group_whose_workers_do_not_reach_each_other_is_given_up(veterans, joins, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_group, "LEAST_SECONDS", 5.0)  # a busy machine kills no worker, at twice that
    closed = lambda *arguments: Exchange(*arguments)._replace(port=9)  # noqa: E731 - nothing listens there
    monkeypatch.setattr(ray_group, "Exchange", closed)
    config = config_of("scaffold", **FULL)
    carry_out(config, tmp_path / "here")
    carry_out(config, tmp_path / "there", rows=session_on(veterans[:2]))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    (line,) = [line for line in log_of(tmp_path / "there").splitlines() if "could not go" in line]
    assert line.endswith("the work is repeated, and sums go through the object store from now on")
    assert joins == [0]


def answers(worker):
    try:
        ray.get(worker.__ray_ready__.remote())
    except ray.exceptions.RayActorError:
        return False
    return True
