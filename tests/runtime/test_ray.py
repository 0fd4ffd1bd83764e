"""Runs on Ray have the bits of runs in process, for any number of workers, after deaths of workers and server."""

from __future__ import annotations

import fcntl
import json
from functools import partial

import pytest
import ray
import torch

import raylfl
from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm
from raylfl.runtime.ray import backend as ray_backend
from raylfl.runtime.ray import stored as ray_stored
from raylfl.runtime.ray import worker_pool
from raylfl.runtime.ray.backend import RayBackend
from raylfl.runtime.ray.cohort import CohortInFlight
from raylfl.runtime.ray.connection import DIRECT
from raylfl.runtime.ray.stored import StoredExperiment, StoredSamples
from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.session import Session
from raylfl.runtime.workers.task import REPORT
from tests.api.test_control import Seen, together
from tests.runtime.clusters import QUIET, SMALL, lean_ray
from tests.runtime.faults import actors, carry_out, killed, log_of, options_of, outcome, strike, wait_until
from tests.runtime.test_evaluation import LOGGED
from tests.runtime.test_run import DIGITS
from tests.runtime.tiny import TINY, rude
from tests.runtime.veterans import Veteran
from tests.shares import also


@pytest.fixture(scope="module")
def cluster():
    """One small cluster for the whole file: starting Ray is the slow part."""
    with lean_ray():
        ray.init("local", num_cpus=2, **SMALL, **QUIET)
    yield
    ray.shutdown()


LOSSY = ["link.name=bernoulli", "link.q=0.3", "local.steps={list: [1, 2, 3, 4, 5, 6, 7, 8]}"]


def test_on_a_ray_of_the_callers_own_runs_follow_stop_and_go_side_by_side(cluster, runs):
    """Two threads carry out runs that their callbacks stop, each after another round."""
    here = [*runs, "runtime.backend=ray", "runtime.workers=1", "runtime.cpus_per_worker=0.5"]
    seen = [Seen({2: "enough"}), Seen({0: "enough"})]
    stopped = together(*[lambda one=one: raylfl.run(TINY, here, callbacks=[one]) for one in seen])
    for rounds, result, one in zip((3, 1), stopped, seen, strict=True):
        want = raylfl.run(TINY, [*runs, f"rounds={rounds}"]).params
        assert torch.equal(result.params, want)
        assert torch.equal(one.params[-1], want)
    assert ray.is_initialized()


def test_runs_on_ray_that_are_compared_share_their_actors_and_have_the_bits_of_local_ones(cluster, runs):
    """From the config to the records, with the server in an actor of its own; no actor outlives them. The second run
    uses the processes of the first with their loaded modules.
    """
    overrides = [*runs, *LOSSY, "rounds=2", "runtime.backend=ray", "runtime.cpus_per_worker=0.5", "runtime.workers=2"]
    names = ["scaffold", "sfl", "fedaware"]
    seen, folders = [], []

    def watch(progress):
        seen.append((progress.experiment.algorithm, frozenset(actors("WorkerActor")), frozenset(actors("ServerActor"))))
        folders.append(progress.run_dir)
        for folder in set(folders) - {progress.run_dir}:  # finished runs may be resumed
            with open(folder / ".writing", "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    results = raylfl.compare(DIGITS, overrides, names, watch)
    assert len({id(algorithm) for algorithm, _, _ in seen}) == 3
    ((workers, server),) = {(workers, server) for _, workers, server in seen}
    assert (len(workers), len(server)) == (2, 1)
    for name, result in zip(names, results, strict=True):
        alone = raylfl.run(DIGITS, [*runs, *LOSSY, "rounds=2", f"algorithm.name={name}"])
        assert outcome(result.run_dir) == outcome(alone.run_dir)
        assert (result.run_dir / "partition.json").read_bytes() == (alone.run_dir / "partition.json").read_bytes()
    wait_until(lambda: not actors("WorkerActor") and not actors("ServerActor"), "end of the actors")


PINNED = (
    "2 clients on 2 workers, on CPUs, on 1 node; each worker reads only its own clients' samples; the server on the "
    "same node; all samples (0.0 MB) are in the process that started the run"
)
SHARED = "2 clients on 1 worker, on CPUs, on 1 node; each worker can read all samples; the server on the same node"


@pytest.mark.parametrize(("workers", "placement", "line"), [(2, "pinned", PINNED), also(1, "shared", SHARED)])
def test_each_client_has_a_worker_of_its_own_where_there_are_enough(cluster, runs, workers, placement, line):
    """By default, where clients run one by one; with the bits of one process."""
    config = {**TINY, "num_clients": 2, "participation": "full", "algorithm": "scaffold", "rounds": 3}
    overrides = [*runs, "runtime.vectorize=never", "eval.global=true", "eval.diversity=true"]
    there = [f"runtime.workers={workers}", "runtime.backend=ray", "runtime.cpus_per_worker=0.5"]
    result = raylfl.run(config, [*overrides, *there])
    assert result.summary["runtime"]["placement"] == placement
    assert f"{line}\n" in log_of(result.run_dir)
    assert outcome(result.run_dir) == outcome(raylfl.run(config, overrides).run_dir)


@pytest.fixture(scope="module")
def veterans(cluster):
    """Workers that serve one experiment after another, because starting their processes is slow."""
    actors = [ray.remote(Veteran).options(num_cpus=0).remote() for _ in range(4)]
    yield actors
    for actor in actors:
        ray.kill(actor)


def session_on(actors, shared):
    """The session of a run with these workers, the round loop in this process.

    shared: the stored experiment, once it is; actors that have worked on it before keep their worker.
    """

    def rows(experiment, run_dir, resume, fault):
        if not shared:
            shared.append(StoredExperiment.put(experiment, len(actors)))
        backend = RayBackend(experiment, shared[0], actors, run_dir.log)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in the server actor
        yield from Session(experiment, backend, run_dir, fault).rows(resume)
        torch.set_num_threads(threads)

    return rows


def test_no_worker_imports_torchs_compiler(veterans, tmp_path):
    """A process without the compiler records and replays steps and evaluates afterwards."""
    model = ["model.class_path=tests.runtime.tiny.Looking", "local.steps=6", "runtime.step=recorded"]
    model += ["runtime.vectorize=never", "eval.every=1", "rounds=3"]
    carry_out(TINY, tmp_path / "run", model, rows=session_on(veterans[:1], []))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {row["step"] for row in summary["local_steps"]} == {"recorded", "autograd"}
    seen = [value for row in rows_of(tmp_path / "run") for name, value in row.items() if name.endswith("/compiler")]
    assert seen
    assert not any(seen)


@pytest.mark.parametrize("name", ["Measured", also("Gathering"), also("Telling"), "Hooked"])
def test_metric_objects_hooks_and_training_logs_give_the_same_bits_on_several_workers(veterans, tmp_path, name):
    """States of seven batches from three workers, merged; the whole evaluation on one of them; what local steps log."""
    overrides = ["eval.batch_size=7", f"model.class_path=tests.runtime.lightning_modules.{name}"]
    carry_out(LOGGED, tmp_path / "here", overrides)
    carry_out(LOGGED, tmp_path / "there", overrides, rows=session_on(veterans[:3], []))
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
def test_every_algorithm_gives_the_same_bits_with_1_and_4_workers(veterans, tmp_path, algorithm, one_by_one):
    """The runs are in process and on Ray's workers, which take random times and so end in random order."""
    model = {"class_path": "tests.runtime.tiny.Dawdling"}  # with BatchNorm
    config = {**TINY, "algorithm": options_of(algorithm), "model": model, "rounds": 3, "num_clients": 12}
    config |= {"participation": {"name": "uniform", "size": 8}, "eval": {"every": 2, "global": True, "batch_size": 5}}
    config["runtime"] = {**TINY.get("runtime", {}), "vectorize": "never" if one_by_one else "auto"}
    carry_out(config, tmp_path / "here")
    shared = []
    for workers in (1, 4):
        carry_out(config, tmp_path / str(workers), rows=session_on(veterans[:workers], shared))
        assert outcome(tmp_path / str(workers)) == outcome(tmp_path / "here")


def test_64_nodes_of_a_graph_on_two_workers_have_the_bits_of_one_process(veterans, tmp_path):
    """Each node sends two rows, blocks exchange them by reference; in process all blocks are mixed at once."""
    config = {"base": ["data/synthetic_images", "model/mlp"], "num_clients": 64, "rounds": 3, "eval": {"every": 0}}
    config |= {"algorithm": "push_pull", "topology": "exponential", "participation": {"name": "bernoulli", "p": 0.8}}
    config |= {"local": {"steps": 2, "batch_size": 4}, "link": {"name": "bernoulli", "q": 0.1}}
    config |= {"runtime": {"backend": "local"}, "logging": {"report": False}}
    carry_out(config, tmp_path / "here")
    carry_out(config, tmp_path / "there", rows=session_on(veterans[:2], []))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")


@pytest.mark.parametrize("algorithm", [also("fedavg"), "scaffold", "sfl"])
def test_pinned_clients_give_the_bits_of_shared_data_on_1_2_and_3_workers(veterans, tmp_path, monkeypatch, algorithm):
    """The model has BatchNorm and dropout; uploads are lost; each worker refuses samples of other workers' clients. The
    partial sums count as long vectors, which one worker joins for the server.
    """
    monkeypatch.setenv(DIRECT, "0")
    config = {**TINY, "algorithm": {"name": algorithm}, "partition": {"name": "quantity"}}
    config |= {"eval": {"every": 2, "global": True, "clients": True, "diversity": True, "batch_size": 7}}
    config |= {"runtime": {"backend": "local", "vectorize": "never"}}
    carry_out(config, tmp_path / "here")
    config |= {"runtime": {"placement": "pinned"}}
    carry_out(config, tmp_path / "debugged", ["runtime.backend=local"])
    assert outcome(tmp_path / "debugged") == outcome(tmp_path / "here")
    for workers in (1, 2, 3):
        carry_out(config, tmp_path / str(workers), rows=session_on(veterans[:workers], []))
        assert outcome(tmp_path / str(workers)) == outcome(tmp_path / "here")


PINNED = ["runtime.backend=ray", "runtime.placement=pinned"]
STATES = {  # every kind of client state
    "scaffold": [],
    "feddyn": [],
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
    pinned = [*overrides, *PINNED]
    for workers, fault in ((3, ("collect", 3)), (2, ("checkpoint", 5))):
        rows = session_on(veterans[:workers], [])
        call = partial(carry_out, config, tmp_path / "it", pinned, workers < 3, strike(*fault), rows)
        killed(call)
    carry_out(config, tmp_path / "it", pinned, True, rows=session_on(veterans[:1], []))
    assert outcome(tmp_path / "it") == outcome(tmp_path / "here")


@pytest.mark.parametrize(("algorithm", "state"), [("fedavg", "kept"), also("fedavg", "averaged"), ("sfl", "averaged")])
def test_moments_of_local_optimizers_give_the_same_bits_on_several_workers(veterans, tmp_path, algorithm, state):
    """Moments are client states, or travel with the model to all clients and along the ring."""
    config = {**TINY, "algorithm": {"name": algorithm}, "local": {**TINY["local"], "optimizer": "adamw"}}
    config["local"]["optimizer_state"] = state
    carry_out(config, tmp_path / "here")
    carry_out(config, tmp_path / "there", rows=session_on(veterans[:3], []))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")


@pytest.mark.parametrize("algorithm", [also("scaffold"), "sfl"])
def test_states_that_are_too_many_for_the_server_go_to_the_object_store(veterans, tmp_path, monkeypatch, algorithm):
    """The object store can spill; it holds one state per client, with the buffers in a ring."""
    config = {**TINY, "algorithm": {"name": algorithm}, "rounds": 3, "link": {"name": "perfect"}}
    config |= {"model": {"class_path": "tests.runtime.tiny.Net"}, "local": {**TINY["local"], "buffers": "local"}}
    carry_out(config, tmp_path / "few", rows=session_on(veterans[:2], []))
    stored, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: stored.append(value) or put(value))
    monkeypatch.setattr(ray_backend, "HEAP", 0)
    carry_out(config, tmp_path / "many", rows=session_on(veterans[:2], []))
    assert len([value for value in stored if isinstance(value, dict)]) == 3 * 3
    assert outcome(tmp_path / "many") == outcome(tmp_path / "few")


def test_broadcasts_are_sent_within_calls_up_to_rays_limit(veterans, monkeypatch):
    backend = RayBackend.__new__(RayBackend)
    backend._traffic = TrafficCounter()
    small, large = ({"x": torch.zeros(size)} for size in (20_000, 200_000))
    for direct, workers, inline in ((10**5, 2, [True, False]), (10**6, 1, [True, True]), (10**6, 20, [False, False])):
        monkeypatch.setenv(DIRECT, str(direct))
        backend.workers = workers
        assert [isinstance(backend.shared_broadcast(down), dict) for down in (small, large)] == inline


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "sfl", "dsgd", "fedavg, evaluated"])
def test_traffic_is_what_the_calls_of_each_round_carry(veterans, tmp_path, algorithm):
    """Counted by hand: three rounds of six clients on two workers, one call per worker and round, or a ring."""
    name, _, evaluated = algorithm.partition(", ")
    config = {**TINY, "algorithm": {"name": name}, "rounds": 3, "link": {"name": "perfect"}}
    config |= {"model": {"class_path": "tests.runtime.tiny.Net", "init_args": {"norm": False}}}
    config |= {"participation": {"name": "full"}, "eval": {"every": 2 if evaluated else 0, "inconsistency": False}}
    config["runtime"] = {"backend": "local", "vectorize": "never"}
    carry_out(config, tmp_path / "here")
    carry_out(config, tmp_path / "there", rows=session_on(veterans[:2], []))
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
    assert traffic(tmp_path / "there") == expected[algorithm]
    assert traffic(tmp_path / "here") == [(0, 0)] * 3


def test_a_round_waits_once_for_its_workers(veterans, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "READ_SECONDS", 600.0)
    waits, rounds, wait, results = [], [], ray.wait, CohortInFlight.results
    monkeypatch.setattr(ray, "wait", lambda refs, **options: [waits.append(len(refs)), wait(refs, **options)][1])

    def counted(cohort):
        waits.clear()
        out = results(cohort)
        rounds.append([*waits])
        return out

    monkeypatch.setattr(CohortInFlight, "results", counted)
    carry_out({**TINY, "participation": {"name": "full"}}, tmp_path, rows=session_on(veterans[:2], []))
    assert rounds == [[2]] * 6  # references in each call of `ray.wait`


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
    carry_out(config, tmp_path / "there", rows=session_on(veterans[:2], []))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    assert [len(refs) for _, refs in pieces] == [-(-size // 4) for size, _ in pieces]
    assert sum(size for size, _ in pieces) == 60
    held = ray._private.worker.global_worker.core_worker.get_all_reference_counts
    wait_until(lambda: held().keys().isdisjoint(ref for _, refs in pieces for ref in refs), "end of all references")


@pytest.mark.parametrize("algorithm", [also("fedavg"), "scaffold", "sfl"])
def test_between_workers_of_one_node_nothing_crosses(veterans, tmp_path, algorithm):
    config = {**TINY, "algorithm": {"name": algorithm}, "rounds": 2}
    carry_out(config, tmp_path, rows=session_on(veterans[:2], []))
    assert [row["traffic/between_nodes_bytes"] for row in rows_of(tmp_path)] == [0, 0]


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def traffic(folder):
    return [(row["traffic/sent_bytes"], row["traffic/received_bytes"]) for row in rows_of(folder)]


def test_a_module_that_seeds_every_generator_changes_no_other_bits_on_ray_either(veterans, tmp_path):
    carry_out(rude(seeds=False), tmp_path / "polite")
    for workers in (1, 2):
        carry_out(rude(seeds=True), tmp_path / str(workers), rows=session_on(veterans[:workers], []))
        assert outcome(tmp_path / str(workers)) == outcome(tmp_path / "polite")
