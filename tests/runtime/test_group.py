"""The exchange of sums between workers by itself; on Ray: test_ray.py."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.partial_sums import SumPlan, side_by_side
from raylfl.core.placement import SHARED, Placement
from raylfl.core.reduce import weighted_sum
from raylfl.errors import BadConfig
from raylfl.runtime.ray.backend import RayBackend
from raylfl.runtime.ray.connection import DIRECT
from raylfl.runtime.ray.group import Exchange, GroupMember, WorkerGroup, kind_of_group
from raylfl.runtime.ray.stored import SamplesMissing
from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.workers.task import Room


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


def test_broadcasts_are_sent_within_calls_up_to_rays_limit(monkeypatch):
    monkeypatch.setattr("ray.put", lambda value: None)
    backend = RayBackend.__new__(RayBackend)
    backend.pool = SimpleNamespace(traffic=TrafficCounter())
    small, large = ({"x": torch.zeros(size)} for size in (20_000, 200_000))
    for direct, workers, inline in ((10**5, 2, [True, False]), (10**6, 1, [True, True]), (10**6, 20, [False, False])):
        monkeypatch.setenv(DIRECT, str(direct))
        backend.workers = workers
        assert [isinstance(backend.shared_broadcast(down), dict) for down in (small, large)] == inline
