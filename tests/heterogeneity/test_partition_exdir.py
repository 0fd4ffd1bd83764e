"""ExDir(C, alpha) against its definition, read literally, and against the settings of the SFL paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raylfl.errors import BadValue
from raylfl.heterogeneity.partition import Samples, exdir
from raylfl.heterogeneity.partition.deal import dirichlet_counts
from raylfl.heterogeneity.partition.exdir import ExDir, allocate
from raylfl.heterogeneity.partition.stats import class_counts
from tests.heterogeneity.test_partition import balanced, tasks


def literally(labels, clients, classes, alpha, rng):
    """Counts [N, K] of one ExDir partition, drawn over all clients and then masked; no client is redrawn."""
    names = np.unique(labels)
    fewest = max(classes * clients // len(names) // 5, 1)
    while True:
        owned = np.zeros((clients, len(names)), dtype=bool)
        for i in range(clients):
            owned[i, rng.choice(len(names), classes, replace=False)] = True
        if owned.sum(axis=0).min() >= fewest:
            break
    counts = np.zeros((clients, len(names)), dtype=int)
    for c, name in enumerate(names):
        p = rng.dirichlet(np.full(clients, alpha))
        p *= owned[:, c] & (counts.sum(axis=1) < len(labels) / clients)
        total = np.sum(labels == name)
        ends = np.floor(np.cumsum(p / p.sum()) * total + 1e-9).astype(int)
        counts[:, c] = np.diff(ends, prepend=0)
        counts[np.flatnonzero(owned[:, c])[-1], c] += total - ends[-1]
    return counts


@pytest.mark.parametrize(("clients", "classes"), [(500, 1), (500, 2), (1000, 1), (1000, 2)])
def test_the_papers_settings_lose_no_sample_and_give_every_client_ten(clients, classes):
    samples = balanced(100 * clients, 10)  # CIFAR-10 over 500; 100,000 over 1000
    for seed in range(5):
        split = ExDir(classes, 10.0).split(samples, clients, seed)
        counts = class_counts(split, samples)
        assert split.dropped == 0
        assert np.array_equal(counts.sum(axis=0), samples.class_sizes)
        assert counts.sum(axis=1).min() >= 10
        assert (counts > 0).sum(axis=1).max() <= classes
        assert (counts > 0).sum(axis=0).min() >= classes * clients // 50


def test_ten_clients_with_one_of_ten_classes_have_one_possible_result():
    """SFL, Fig. 7, first row: each client owns one whole class, whatever alpha is."""
    samples = balanced(60_000, 10)
    for alpha in (1.0, 10.0, 100.0):
        counts = class_counts(ExDir(1, alpha).split(samples, 10, 0), samples)
        assert np.array_equal(np.sort(counts, axis=1)[:, -1], [6000] * 10)
        assert np.array_equal((counts > 0).sum(axis=0), [1] * 10)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_sizes_follow_the_definition_read_literally(classes):
    samples = balanced(20_000, 10)
    ours = np.concatenate([ExDir(classes, 10.0, min_size=0).split(samples, 200, s).sizes for s in range(8)])
    rng = np.random.default_rng(1)
    oracle = [literally(samples.labels, 200, classes, 10.0, rng).sum(axis=1) for _ in range(8)]
    assert stats.ks_2samp(ours, np.concatenate(oracle)).pvalue > 0.001


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_shares_of_a_class_have_the_second_moment_of_dirichlet_over_its_owners(alpha):
    """C = 1: the cap never binds, so E[sum_i p_i^2] = (alpha + 1) / (m alpha + 1) for a class of m owners."""
    samples = balanced(100_000, 10)
    ratios = []
    for seed in range(40):
        counts = class_counts(ExDir(1, alpha, min_size=0).split(samples, 100, seed), samples)
        owners = np.array([np.sum(column > 0) for column in counts.T])
        ratios += list(((counts / 10_000) ** 2).sum(axis=0) * (owners * alpha + 1) / (alpha + 1))
    assert np.mean(ratios) == pytest.approx(1.0, abs=4 * np.std(ratios) / np.sqrt(len(ratios)))


@settings(max_examples=60, deadline=None)
@given(task=tasks(), classes=st.integers(1, 4), alpha=st.floats(0.05, 50))
def test_a_client_has_at_most_c_classes_and_a_full_one_takes_no_more(task, classes, alpha):
    samples, clients, seed = task
    classes = min(max(classes, -(-samples.num_classes // clients)), samples.num_classes)
    counts = class_counts(ExDir(classes, alpha, min_size=0).split(samples, clients, seed), samples)
    assert np.array_equal(counts.sum(axis=0), samples.class_sizes)
    assert (counts > 0).sum(axis=1).max() <= classes
    full = np.cumsum(counts, axis=1) - counts >= samples.count / clients
    taken_by_full = (full & (counts > 0)).any(axis=0)
    taken_by_others = (~full & (counts > 0)).any(axis=0)
    assert not np.any(taken_by_full & taken_by_others)  # only where all owners were full


@settings(max_examples=60, deadline=None)
@given(clients=st.integers(1, 60), labels=st.integers(1, 30), seed=st.integers(0, 2**32), data=st.data())
def test_every_client_gets_c_classes_and_every_class_enough_clients(clients, labels, seed, data):
    classes = data.draw(st.integers(-(-labels // clients), labels))
    owned = allocate(classes, clients, labels, np.random.default_rng(seed))
    assert np.all(owned.sum(axis=1) == classes)
    assert owned.sum(axis=0).min() >= max(classes * clients // labels // 5, 1)


def test_classes_are_allocated_uniformly():
    rng = np.random.default_rng(0)
    owned = sum(allocate(2, 10, 4, rng).astype(int) for _ in range(2000))
    assert owned.mean() == 1000
    assert np.abs(owned - 1000).max() < 4.5 * np.sqrt(2000 * 0.25)


@pytest.mark.parametrize("draws", [1, 300])
def test_filling_up_favours_no_result(draws, monkeypatch):
    """4 clients of 3 classes, C = 1: 36 results, equally likely, whether redrawn or filled up."""
    monkeypatch.setattr(exdir, "REALLOCATIONS", draws)
    rng = np.random.default_rng(0)
    found = [tuple(allocate(1, 4, 3, rng).argmax(axis=1)) for _ in range(4000)]
    observed = np.unique(found, axis=0, return_counts=True)[1]
    assert len(observed) == 36
    assert stats.chisquare(observed).pvalue > 0.001


def test_no_class_has_less_than_a_fifth_of_the_average_clients():
    """1000 clients of 100 classes: 10 on average; without redraws one class in 2000 would have only one."""
    rng = np.random.default_rng(0)
    assert min(allocate(1, 1000, 100, rng).sum(axis=0).min() for _ in range(300)) == 2


def test_a_class_whose_owners_are_all_full_is_shared_by_all_of_them():
    owned = np.array([[True, False, True], [False, True, True], [False, True, False]])
    counts = dirichlet_counts(np.array([50, 100, 60]), 1e4, owned, 40, np.random.default_rng(0))
    assert counts[:, 0].tolist() == [50, 0, 0]
    assert counts[:, 2] == pytest.approx([30, 30, 0], abs=3)


def test_an_unreachable_min_size_is_refused_with_the_remedy():
    samples = balanced(50_000, 10)
    with pytest.raises(BadValue, match=r"^min_size=60, but must be at most \d+, .*alpha=1, .*num_clients=500"):
        ExDir(1, 1.0, min_size=60).split(samples, 500, 0)


def test_uneven_labels_are_partitioned_too():
    labels = np.repeat(np.arange(5), [4000, 2000, 1000, 500, 100])
    split = ExDir(2, 10.0, min_size=1).split(Samples(len(labels), labels), 20, 0)
    assert split.sizes.sum() == 7600
