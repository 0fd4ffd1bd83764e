"""Sums that go from worker to worker, by gloo on CPUs: the bits of the object store, also after losses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import torch
import torch.distributed as dist

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.partial_sums import SumPlan, side_by_side
from raylfl.core.placement import SHARED, Placement
from raylfl.core.reduce import weighted_sum
from raylfl.errors import BadConfig
from raylfl.runtime.ray import group as ray_group
from raylfl.runtime.ray.connection import DIRECT
from raylfl.runtime.ray.group import Exchange, GroupMember, WorkerGroup, kind_of_group
from raylfl.runtime.ray.stored import SamplesMissing
from raylfl.runtime.ray.worker_pool import WorkerPool
from raylfl.runtime.workers.task import Room
from tests.runtime.clusters import QUIET, SMALL, lean_ray
from tests.runtime.faults import actors, carry_out, log_of, outcome, wait_until
from tests.runtime.test_ray import rows_of, session_on
from tests.runtime.tiny import TINY, Net
from tests.runtime.veterans import Stuck, Veteran
from tests.shares import also

FULL = {"participation": {"name": "full"}, "link": {"name": "perfect"}, "eval": {"every": 0}}
LINE = "long sums of uploads go from worker to worker by gloo"


# -- without Ray -------------------------------------------------------------------------------------------------


class FakeNCCL:
    """NCCL's process group as torch's `init_process_group` makes it, with gloo inside."""

    Options = SimpleNamespace

    def __new__(cls, store, rank, size, options):
        return dist.ProcessGroupGloo(store, rank, size, timeout=options._timeout)


@pytest.mark.parametrize(("seed", "kind"), [*((seed, "gloo") for seed in range(8)), (8, "nccl")])
def test_columns_that_workers_exchange_have_the_bits_of_the_whole_sums(seed, kind, monkeypatch):
    """Random cohorts and divisions; two tasks of a worker; workers without sums; more workers than columns."""
    monkeypatch.setattr(dist, "ProcessGroupNCCL", FakeNCCL, raising=False)
    rng = np.random.default_rng(seed)
    workers, count, width = int(rng.integers(2, 6)), int(rng.integers(1, 12)), int(rng.choice([3, 50, 3001]))
    rows, c = torch.from_numpy(rng.normal(size=(count, width))).float(), rng.normal(size=count)
    buffers = torch.from_numpy(rng.normal(size=(count, 2)))
    plan = SumPlan.of(np.arange(count), {"a": ("up", c), "b": ("buffers", np.ones(count))}, torch.float32)
    members, owner = [GroupMember() for _ in range(workers)], rng.integers(workers, size=count)
    keys = [
        [
            member.keep(0, plan.parts(task.tolist(), [{"up": rows[task], "buffers": buffers[task]}], stay=True))
            for task in np.array_split(np.flatnonzero(owner == w), 2)
            if len(task)
        ]
        for w, member in enumerate(members)
    ]
    sums = [member.describe(own)[1] for member, own in zip(members, keys, strict=True)]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    work = Exchange(kind, "127.0.0.1", store.port, "here", 60.0, count, sums)
    cpu = torch.device("cpu")
    with ThreadPoolExecutor(workers) as threads:
        for _ in range(2):  # the second exchange is in the same process group
            pieces = list(threads.map(lambda w: members[w].exchange(work, w, keys[w], cpu), range(workers)))
            sums = plan.sums([side_by_side(pieces)])
            assert torch.equal(sums["a"], weighted_sum(rows, c))
            assert torch.equal(sums["b"], weighted_sum(buffers, np.ones(count)))
    assert not dist.is_initialized()  # a module may have a default group of its own


def test_a_member_has_the_sums_of_one_round_only():
    member = GroupMember()
    first, second = member.keep(0, [{}]), member.keep(0, [{}])
    assert member.sums([first, second]) == [{}]
    third = member.keep(1, [{}])
    assert member.sums([third]) == [{}]
    for key in (first, second):
        with pytest.raises(SamplesMissing):
            member.sums([third, key])


APART = Placement(np.arange(2), ("a", "b"))
CARDS = {"gpus_per_worker": 1.0}


@pytest.mark.parametrize(
    ("options", "placement", "has_nccl", "kind"),
    [
        ({}, SHARED, True, None),
        (CARDS, SHARED, True, "nccl"),
        (CARDS, SHARED, False, None),
        (CARDS, APART, True, None),
        (CARDS | {"sums": "object_store"}, SHARED, True, None),
        ({"sums": "object_store"}, APART, True, None),
        (CARDS | {"sums": "gloo"}, SHARED, True, "gloo"),
        (CARDS | {"sums": "nccl"}, SHARED, True, "nccl"),
        ({"gpus_per_worker": 0.5}, SHARED, True, None),
        ({"sums": "gloo"}, SHARED, False, "gloo"),
    ],
)
def test_workers_with_a_gpu_each_use_nccl_by_default(options, placement, has_nccl, kind, monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: has_nccl)
    assert kind_of_group(RuntimeConfig(**options), placement) == kind


@pytest.mark.parametrize(
    ("options", "placement", "has_nccl", "reason"),
    [
        ({"sums": "nccl"}, SHARED, True, r"with 0 GPUs per worker \(gpus_per_worker=1 allows NCCL\)"),
        ({"sums": "nccl", "gpus_per_worker": 0.5}, SHARED, True, "or gloo with 0.5 GPUs per worker"),
        (CARDS | {"sums": "nccl"}, SHARED, False, "torch has no NCCL"),
        ({"sums": "gloo"}, APART, True, "nodes with data of their own must not receive each other's uploads"),
    ],
)
def test_a_way_that_cannot_work_is_refused(options, placement, has_nccl, reason, monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: has_nccl)
    with pytest.raises(BadConfig, match=rf"runtime.sums={options['sums']}, but must be auto.*{reason}"):
        kind_of_group(RuntimeConfig(**options), placement)


def test_sums_stay_on_a_gpu_if_there_is_room_for_their_copies():
    group = WorkerGroup.__new__(WorkerGroup)
    group.works, group._room = True, Room(9, True)
    assert [group.fits(vectors) for vectors in (1, 3, 4)] == [True, True, False]
    group._room = None
    assert group.fits(10**6)


# -- on Ray ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kill_file(tmp_path_factory):
    return tmp_path_factory.mktemp("faults") / "kill"


@pytest.fixture(scope="module")
def cluster(kill_file):
    with lean_ray(RAYLFL_FAULT=str(kill_file)):
        ray.init("local", num_cpus=2, **SMALL, **QUIET)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def workers(cluster, kill_file):
    """Three workers that serve one experiment after another; the third one hangs if `kill_file.stuck` exists."""
    options = {"num_cpus": 0, "max_restarts": -1}
    actors = [ray.remote(Veteran).options(**options).remote() for _ in range(2)]
    return [*actors, ray.remote(Stuck).options(**options).remote(f"{kill_file}.stuck")]


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


@pytest.mark.parametrize(
    ("algorithm", "summed"),
    [
        ("scaffold", True),
        also("fedavg", True),
        also("focus", True),
        also("feddyn", True),
        also("fedaware", False),
        also("sfl", False),
    ],
)
@pytest.mark.parametrize("placement", ["shared", "pinned"])
def test_runs_have_the_bits_of_one_process_with_2_and_3_workers(workers, joins, tmp_path, algorithm, summed, placement):
    """Random cohorts, lost uploads, BatchNorm's buffers; `eval.every` reads rows of no round."""
    config = config_of(algorithm)
    carry_out(config, tmp_path / "here")
    for count in (2, 3):
        overrides = [f"runtime.placement={placement}"]
        carry_out(config, tmp_path / str(count), overrides, rows=session_on(workers[:count], []))
        assert outcome(tmp_path / str(count)) == outcome(tmp_path / "here")
        assert (LINE in log_of(tmp_path / str(count))) == summed
    assert joins == ([2] * 4 + [3] * 4) * summed


def test_vectors_do_not_travel_through_the_object_store(workers, joins, tmp_path, monkeypatch):
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
        carry_out(config, tmp_path / sums, [f"runtime.sums={sums}"], rows=session_on(workers, []))
        total[sums] = sizes[-1]
    assert outcome(tmp_path / "gloo") == outcome(tmp_path / "object_store")
    assert joins == [3] * 4
    assert 4 * vector < total["gloo"] < 4.2 * vector
    assert total["object_store"] > 4 * 4 * vector  # sums of three workers, and the joined one
    received = [row["traffic/received_bytes"] for row in rows_of(tmp_path / "gloo")]
    assert all(vector < each < 1.01 * vector for each in received)


@pytest.mark.parametrize("algorithm", ["scaffold", also("fedavg"), also("focus")])
def test_workers_killed_in_mid_round_change_no_bit(workers, joins, kill_file, tmp_path, algorithm):
    """One in an exchange of round 1, one before its work of round 3, one after that of round 5."""
    config = config_of(algorithm, **FULL) | {"rounds": 8}
    kill_file.write_text("")
    carry_out(config, tmp_path / "here")
    kill_file.write_text("exchange:1\nwork:3\nworked:5")
    carry_out(config, tmp_path / "there", rows=session_on(workers, []))
    assert kill_file.read_text() == ""
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    log = log_of(tmp_path / "there")
    assert log.count("other workers take its work") == 3
    (line,) = [line for line in log.splitlines() if "could not go from worker to worker" in line]
    assert line.endswith("the work is repeated")
    assert "the worker was lost: its process ended" in line
    assert joins == [3, 0, 3, 3, 2, 3, 2, 3, 3]


def test_a_worker_that_ray_restarts_between_two_rounds_joins_a_new_group(workers, tmp_path, monkeypatch, joins):
    """The server does not notice the restart: the new process runs its tasks like the former one."""
    watched, struck = WorkerGroup.joined, []

    def strike(self, resident, count):
        result = watched(self, resident, count)
        if not struck:
            struck.append(actors("Veteran")[0])
            struck[0].kill()
            struck[0].wait()
            wait_until(lambda: all(map(answers, workers)), "restart of the worker", 60)
        return result

    monkeypatch.setattr(WorkerGroup, "joined", strike)
    config = config_of("fedavg", **FULL)
    carry_out(config, tmp_path / "here")
    carry_out(config, tmp_path / "there", rows=session_on(workers, []))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    assert joins == [3] * 4
    assert "lost" not in log_of(tmp_path / "there")


def test_a_worker_that_hangs_in_an_exchange_is_started_again(workers, joins, kill_file, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_group, "LEAST_SECONDS", 3.0)
    config = config_of("fedavg", **FULL)
    carry_out(config, tmp_path / "here")
    kill_file.with_name("kill.stuck").touch()
    carry_out(config, tmp_path / "there", rows=session_on(workers, []))
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    assert "gloo (no answer within 6" in log_of(tmp_path / "there")
    assert joins == [0, 3, 3, 3, 3]


def test_a_group_whose_workers_do_not_reach_each_other_is_given_up(workers, joins, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_group, "LEAST_SECONDS", 5.0)  # a busy machine kills no worker, at twice that
    closed = lambda *arguments: Exchange(*arguments)._replace(port=9)  # noqa: E731 - nothing listens there
    monkeypatch.setattr(ray_group, "Exchange", closed)
    config = config_of("scaffold", **FULL)
    carry_out(config, tmp_path / "here")
    carry_out(config, tmp_path / "there", rows=session_on(workers[:2], []))
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


class Grouped(Net):
    """A network whose process is in a default process group of its own."""

    def __init__(self):
        super().__init__()
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def training_step(self, batch, batch_idx):
        assert dist.get_world_size() == 1
        return super().training_step(batch, batch_idx)


def test_a_module_may_have_a_process_group_of_its_own(workers, joins, tmp_path):
    config = config_of("fedavg", model={"class_path": "tests.runtime.test_group.Grouped"}, **FULL)
    try:
        carry_out(config, tmp_path, rows=session_on(workers[:2], []))
    finally:
        dist.destroy_process_group()  # of the check, which was in this process
    assert joins == [2] * 4


def test_a_run_on_ray_refuses_nccl_without_gpus(workers, tmp_path):
    with pytest.raises(BadConfig, match=r"runtime\.sums=nccl, but must be auto, object_store or gloo with 0 GPUs"):
        carry_out(config_of("fedavg"), tmp_path, ["runtime.sums=nccl"], rows=session_on(workers[:2], []))
