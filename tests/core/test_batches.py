"""The samples of each client and step, and batches gathered ahead against batches gathered one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import TensorDataset

import raylfl.core.batches
from raylfl.core.batches import BatchOrders, CohortBatches
from raylfl.core.samples import BatchSource, EvenBatches, SampleSet, sizes_of

CPU = torch.device("cpu")
SHARDS = [np.arange(0, 11), np.arange(20, 23), np.arange(30, 30), np.arange(40, 70)]


def lone(r, client, shard, size, sampling="reshuffle", seed=0):
    """t -> the samples of one client's batch of local step t."""
    orders = BatchOrders(seed, r, [client], [shard], [size], sampling)
    return lambda t: orders.indices(t, [0])[0].tolist()


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5))
def test_an_epoch_shows_every_sample_once(count, batch_size, client):
    shard = np.arange(100, 100 + count)
    batch, per_epoch = lone(3, client, shard, batch_size), -(-count // batch_size)
    for epoch in range(2):
        seen = [batch(epoch * per_epoch + t) for t in range(per_epoch)]
        assert all(len(one) == batch_size for one in seen[:-1])
        assert sorted(sample for one in seen for sample in one) == list(shard)


def test_rounds_and_epochs_have_different_orders_computable_in_any_sequence():
    shard = np.arange(50)
    forward = [lone(1, 2, shard, 10)(t) for t in range(10)]
    fresh = lone(1, 2, shard, 10)
    assert [fresh(t) for t in reversed(range(10))] == forward[::-1]
    assert forward[:5] != forward[5:]
    assert lone(2, 2, shard, 10)(0) != forward[0]
    assert lone(1, 3, shard, 10)(0) != forward[0]


def test_every_order_of_a_shard_is_as_likely_as_any_other():
    clients = range(6000)
    orders = BatchOrders(1, 0, clients, [np.arange(4)] * 6000, [3] * 6000, "reshuffle")
    first, rest = orders.indices(0, clients), orders.indices(1, clients)
    _, counts = np.unique(np.hstack([first, rest]), axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize("alike", [True, False])
def test_drawn_samples_are_uniform(alike):
    sizes = [3000, 3000 if alike else 1]
    orders = BatchOrders(1, 0, [5, 6], [np.arange(7), np.arange(7)], sizes, "with_replacement")
    _, counts = np.unique(np.concatenate([orders.indices(t, [0])[0] for t in range(3)]), return_counts=True)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 0.001


COHORT = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.integers(1, 6), st.integers(0, 9)), min_size=1)
ALIKE = [None, (3, 2), (3, 3), (3, 4)]


@pytest.mark.parametrize("alike", ALIKE)
@pytest.mark.parametrize("sampling", ["reshuffle", "with_replacement"])
@given(cohort=COHORT, seed=st.integers(0, 3))
def test_a_clients_batches_do_not_depend_on_the_other_clients_of_the_cohort(alike, sampling, cohort, seed):
    """Each tuple of the cohort: client, samples, batch size, local steps; a client without samples takes none.

    alike: (samples, batch size) of all clients; None: their own.
    """
    cohort = [(c, *(alike or (n, b)), k) for c, n, b, k in cohort]
    cohort = list({c: (c, n, b, k if n else 0) for c, n, b, k in cohort}.values())
    clients, counts, sizes, steps = (list(column) for column in zip(*cohort, strict=True))
    shards = [1000 * c + np.arange(n) for c, n in zip(clients, counts, strict=True)]
    orders = BatchOrders(seed, 4, clients, shards, sizes, sampling)
    for t in range(max(steps)):
        rows = [k for k in range(len(cohort)) if steps[k] > t]
        for k, seen in zip(rows, orders.indices(t, rows), strict=True):
            assert seen.tolist() == lone(4, clients[k], shards[k], sizes[k], sampling, seed)(t)


def source(transform=None):
    x = torch.arange(80 * 6, dtype=torch.float32).reshape(80, 1, 2, 3)
    return BatchSource(SampleSet.of(TensorDataset(x, torch.arange(80)), transform), CPU, torch.float64)


def cohort(clients, batch_sizes, steps, sampling="reshuffle", transform=None):
    shards = [SHARDS[c] for c in clients]
    return CohortBatches(source(transform), BatchOrders(5, 2, clients, shards, batch_sizes, sampling), steps)


@pytest.mark.parametrize("sampling", ["reshuffle", "with_replacement"])
@pytest.mark.parametrize("ahead", [1, 500, 2**20])
@pytest.mark.parametrize("size", [1, 4, 11, 12])
def test_a_single_clients_batches_do_not_depend_on_how_many_are_gathered_at_once(monkeypatch, sampling, ahead, size):
    monkeypatch.setattr(raylfl.core.batches, "AHEAD", ahead)
    batches, order = cohort([0], [size], [9], sampling), lone(2, 0, SHARDS[0], size, sampling, seed=5)
    for t in range(9):
        (batch,) = batches(t, [0])
        x, y = batch.content
        assert y.tolist() == order(t)
        assert batch.size == len(y)
        assert x.dtype == torch.float64
        np.testing.assert_array_equal(x[:, 0, 0, 0], 6 * y)


@pytest.mark.parametrize("steps", [[5, 5, 5], [5, 2, 4]])
def test_clients_of_equal_sizes_are_gathered_at_once_with_the_same_samples(steps):
    shards = [np.arange(0, 11), np.arange(20, 31), np.arange(40, 51)]
    even = CohortBatches(source(), BatchOrders(5, 2, [4, 0, 7], shards, [4] * 3, "reshuffle"), steps)
    for t in range(5):
        rows = [k for k in range(3) if steps[k] > t]
        batches = even(t, rows)
        assert isinstance(batches, EvenBatches)
        expected = [lone(2, c, shards[k], 4, seed=5)(t) for k, c in enumerate([4, 0, 7])]
        assert sizes_of(batches) == [len(expected[k]) for k in rows] == [b.size for b in batches]
        x, y = batches.stack()
        assert y.tolist() == [expected[k] for k in rows] == [b.content[1].tolist() for b in batches]
        np.testing.assert_array_equal(x[..., 0, 0, 0], 6 * y)


def test_augmentation_is_applied_to_every_batch_on_its_own():
    seen = []
    batches = cohort([0], [4], [3], transform=lambda x: seen.append(len(x)) or -x)
    contents = [batches(t, [0])[0] for t in range(3)]
    assert all(b.random for b in contents)
    assert [float(b.content[0][0, 0, 0, 0]) for b in contents] == [-6.0 * int(b.content[1][0]) for b in contents]
    assert seen == [4, 4, 3]
