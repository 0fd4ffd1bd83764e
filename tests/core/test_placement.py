"""The assignment of clients to workers: balance, few moves, determinism."""

from itertools import product

import numpy as np
import pytest

from raylfl.core.placement import SLACK, Placement, apportion, assign


def sizes_of(kind, count):
    rng = np.random.default_rng(count)
    return {
        "equal": np.full(count, 10),
        "lognormal": np.ceil(10 * rng.lognormal(0.0, 1.0, count)).astype(np.int64),
        "one giant": np.array([10 * count] + [1] * (count - 1)),
        "empty": np.zeros(count, dtype=np.int64),
    }[kind]


@pytest.mark.parametrize("kind", ["equal", "lognormal", "one giant", "empty"])
def test_no_worker_has_much_more_than_its_share(kind):
    for count, workers in product((1, 7, 100, 3000), (1, 2, 3, 8, 64)):
        sizes = np.maximum(sizes_of(kind, count), 1)
        worker = assign(sizes_of(kind, count), workers)
        load = np.bincount(worker, sizes, minlength=workers)
        assert len(load) == workers
        mean = load.sum() / workers
        assert load.max() <= max((1 + SLACK) * mean, mean + sizes.max()), (count, workers)


@pytest.mark.parametrize("kind", ["equal", "lognormal"])
@pytest.mark.parametrize("workers", [2, 3, 7, 16])
def test_one_more_worker_moves_little_more_than_its_own_share(kind, workers):
    """The least that any balanced assignment moves is 1/(W + 1) of the samples."""
    sizes = sizes_of(kind, 3000)
    moved = assign(sizes, workers) != assign(sizes, workers + 1)
    assert sizes[moved].sum() <= 1.4 * sizes.sum() / (workers + 1)


def test_a_placement_is_that_of_every_machine():
    """A constant: the workers of a run's clients must not change from one version to the next."""
    assert assign(np.arange(1, 13), 3).tolist() == [0, 0, 1, 2, 1, 0, 0, 2, 1, 0, 2, 2]
    assert assign(np.arange(1, 13), 3).dtype == np.int64


def test_every_group_of_nodes_has_a_worker_and_the_others_go_by_samples():
    assert apportion([1, 1, 1000], 3) == [1, 1, 1]
    assert apportion([100, 300], 8) == [2, 6]


def test_without_names_any_worker_can_do_any_work():
    found = Placement.pinned(np.arange(1, 13), 3)
    assert found.worker.tolist() == assign(np.arange(1, 13), 3).tolist()
    assert found.nodes == (None, None, None)
    assert found.replacements(1) == [0, 1, 2]


@pytest.mark.parametrize("workers", [2, 3, 5, 9])
def test_clients_live_on_workers_of_their_nodes(workers):
    names = ["b", "a", "b", "b", "a", "b"]
    found = Placement.pinned(np.array([5, 1, 2, 9, 4, 4]), workers, names)
    assert [found.nodes[w] for w in found.worker] == names
    assert len(found.nodes) == workers
    others = [(name, w) for name, worker in zip(names, found.worker, strict=True) for w in found.replacements(worker)]
    assert all(found.nodes[w] == name for name, w in others)
    assert sorted(c for w in range(workers) for c in found.clients(w).tolist()) == list(range(6))
