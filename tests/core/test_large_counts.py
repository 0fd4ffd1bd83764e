"""Counts, offsets and sample indices beyond 2^31, with mocks that need no such memory: all are int64."""

import json

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from raylfl.core.batches import BatchOrders, CohortBatches, below
from raylfl.core.costs import Costs
from raylfl.core.local import _tally
from raylfl.core.population import ClientShards, Population
from raylfl.core.samples import BatchSource, SampleSet
from raylfl.data.by_index import MappedArrays
from raylfl.heterogeneity.partition.deal import cut, equal_sizes
from raylfl.heterogeneity.work import LocalWork
from raylfl.heterogeneity.world import RunContext
from raylfl.runtime.workers.task import ClientReports, Task

MANY = 2**31 + 60


class Numbers(Dataset):
    """Sample k is (k, k mod 3)."""

    def __len__(self):
        return MANY

    def __getitem__(self, k):
        assert 0 <= k < MANY
        return torch.tensor([k // 2**16, k % 2**16], dtype=torch.float64), int(k) % 3


def test_sizes_of_shards_and_draws_from_them_pass_two_billion():
    shards = ClientShards(np.broadcast_to(np.int64(7), (MANY,)), np.array([0, MANY - 60, MANY]))
    assert shards.sizes.tolist() == [len(shards[0]), len(shards[1])] == [2**31, 60]
    assert equal_sizes(MANY, 7).sum() == cut(np.full(9, 1 / 9), MANY).sum() == MANY
    assert below(MANY, np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)).tolist() == [0, MANY // 2, MANY - 1]


@pytest.mark.parametrize("sampling", ["reshuffle", "with_replacement"])
@pytest.mark.parametrize("sizes", [[10, 10], [10, 7]])
def test_batches_have_samples_beyond_two_billion(sampling, sizes):
    clients = [np.arange(MANY - 30 * (c + 1), MANY - 30 * (c + 1) + n) for c, n in enumerate(sizes)]
    orders = BatchOrders(0, 3, [0, 1], clients, [4, 4], sampling)
    source = BatchSource(SampleSet.of(Numbers()), torch.device("cpu"), torch.float64)
    for t in range(6):
        for batch, own in zip(CohortBatches(source, orders, [6, 6])(t, [0, 1]), clients, strict=True):
            high, low = batch.content[0].T.long()
            assert set((high * 2**16 + low).tolist()) <= set(own.tolist())


def test_a_file_with_two_billion_samples_is_read_at_its_end(tmp_path):
    path = tmp_path / "x.npy"
    with path.open("wb") as file:  # sparse: it takes no room on the disk
        header = {"descr": "|u1", "fortran_order": False, "shape": (MANY, 1)}
        np.lib.format.write_array_header_2_0(file, header)
        file.seek(MANY - 1, 1)
        file.write(b"\x05")
    rows = MappedArrays([path])
    assert len(rows) == MANY
    assert rows[MANY - 1][0].tolist() == [5]
    assert SampleSet.of(rows).by_index


def test_local_work_and_its_counters_pass_two_billion():
    population = Population.of(np.array([MANY, 3 * MANY]), "data_size")
    assert population.weights.tolist() == [0.25, 0.75]
    steps, _ = LocalWork(epochs=3, batch_size=1).draw(0, np.arange(2), RunContext(0, population, 1))
    assert steps.tolist() == [3 * MANY, 9 * MANY]
    task = Task(0, (0, 1), (3, 9 * MANY), (MANY, 1), (1.0, 1.0), 0.1)
    assert task.load == 12 * MANY
    _, _, seen = _tally(np.array([2, 1]), np.zeros(3), [[MANY, MANY], [MANY]], [0, 0])
    reports = ClientReports.of((0, 1), gradients=seen)
    assert reports.rows["gradients"].tolist() == [2 * MANY, MANY]
    costs = Costs(gradients=int(reports.rows["gradients"].sum())).add(Costs(gradients=MANY, uplink_floats=MANY))
    assert json.loads(json.dumps(costs.metrics()))["cost/gradients"] == 4 * MANY
