"""Who sees which sample when; and batches gathered ahead against batches gathered one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import raylfl.core.batches
from raylfl.core.batches import BatchOrder, CohortBatches
from raylfl.core.keyed import Keyed
from raylfl.core.samples import BatchSource, EvenBatches, SampleSet, sizes_of

CPU = torch.device("cpu")
SHARDS = [np.arange(0, 11), np.arange(20, 23), np.arange(30, 30), np.arange(40, 70)]


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5))
def test_an_epoch_shows_every_sample_once(count, batch_size, client):
    shard = np.arange(100, 100 + count)
    order = BatchOrder(0, 3, client, shard, batch_size, "reshuffle")
    epochs = [
        np.concatenate([order.indices(e * order.batches_per_epoch + t) for t in range(order.batches_per_epoch)])
        for e in range(2)
    ]
    for seen in epochs:
        assert sorted(seen) == list(shard)


def test_rounds_and_epochs_have_orders_of_their_own_and_can_be_looked_up_in_any_order():
    shard = np.arange(50)
    order = BatchOrder(0, 1, 2, shard, 10, "reshuffle")
    forward = [order.indices(t).tolist() for t in range(10)]
    fresh = BatchOrder(0, 1, 2, shard, 10, "reshuffle")
    assert [fresh.indices(t).tolist() for t in reversed(range(10))] == forward[::-1]
    assert forward[:5] != forward[5:]
    assert BatchOrder(0, 2, 2, shard, 10, "reshuffle").indices(0).tolist() != forward[0]


def test_sampling_with_replacement_repeats_samples():
    order = BatchOrder(0, 0, 0, np.arange(5), 200, "with_replacement")
    drawn = order.indices(0)
    assert len(drawn) == 200
    assert set(drawn) == set(range(5))


def source(transform=None):
    x = torch.arange(80 * 6, dtype=torch.float32).reshape(80, 1, 2, 3)
    return BatchSource(SampleSet.of(TensorDataset(x, torch.arange(80)), transform), CPU, torch.float64)


def cohort(clients, batch_sizes, steps, sampling="reshuffle", transform=None):
    shards = [SHARDS[c] for c in clients]
    return CohortBatches(source(transform), 5, 2, clients, shards, batch_sizes, steps, sampling, Keyed())


@pytest.mark.parametrize("sampling", ["reshuffle", "with_replacement"])
@pytest.mark.parametrize("ahead", [1, 500, 2**20])
@pytest.mark.parametrize("size", [1, 4, 11, 12])
def test_a_lone_clients_batches_are_those_of_its_order_however_many_are_gathered_at_once(
    monkeypatch, sampling, ahead, size
):
    monkeypatch.setattr(raylfl.core.batches, "AHEAD", ahead)
    batches, order = cohort([0], [size], [9], sampling), BatchOrder(5, 2, 0, SHARDS[0], size, sampling)
    for t in range(9):
        (batch,) = batches(t, [0])
        x, y = batch.content
        assert y.tolist() == order.indices(t).tolist()
        assert batch.size == len(y)
        assert x.dtype == torch.float64
        np.testing.assert_array_equal(x[:, 0, 0, 0], 6 * y)


def test_each_client_of_a_cohort_sees_what_it_sees_alone():
    clients, sizes, steps = [3, 0, 1], [7, 4, 5], [6, 6, 6]
    together = cohort(clients, sizes, steps)
    for t in range(6):
        for k, batch in zip([0, 1, 2], together(t, [0, 1, 2]), strict=True):
            (alone,) = cohort([clients[k]], [sizes[k]], [6])(t, [0])
            assert batch.content[1].tolist() == alone.content[1].tolist()
    assert [b.content[1].tolist() for b in together.full()] == [SHARDS[c].tolist() for c in clients]


@pytest.mark.parametrize("steps", [[5, 5, 5], [5, 2, 4]])
def test_clients_that_are_alike_are_gathered_at_once_with_the_same_samples(steps):
    shards = [np.arange(0, 11), np.arange(20, 31), np.arange(40, 51)]
    even = CohortBatches(source(), 5, 2, [4, 0, 7], shards, [4] * 3, steps, "reshuffle", Keyed())
    for t in range(5):
        rows = [k for k in range(3) if steps[k] > t]
        batches = even(t, rows)
        assert isinstance(batches, EvenBatches)
        expected = [BatchOrder(5, 2, c, shards[k], 4, "reshuffle").indices(t).tolist() for k, c in enumerate([4, 0, 7])]
        assert sizes_of(batches) == [len(expected[k]) for k in rows] == [b.size for b in batches]
        x, y = batches.stacked()
        assert y.tolist() == [expected[k] for k in rows] == [b.content[1].tolist() for b in batches]
        np.testing.assert_array_equal(x[..., 0, 0, 0], 6 * y)


def test_augmentation_sees_every_batch_on_its_own():
    seen = []
    batches = cohort([0], [4], [3], transform=lambda x: seen.append(len(x)) or -x)
    contents = [batches(t, [0])[0] for t in range(3)]
    assert all(b.random for b in contents)
    assert [float(b.content[0][0, 0, 0, 0]) for b in contents] == [-6.0 * int(b.content[1][0]) for b in contents]
    assert seen == [4, 4, 3]
