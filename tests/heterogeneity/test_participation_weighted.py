"""Unequal sampling without replacement, against the exact enumeration of all orders."""

import math
from itertools import permutations

import numpy as np
import pytest

from raylfl.core.population import Population
from raylfl.heterogeneity.participation.uniform import Weighted
from raylfl.heterogeneity.world import RunContext
from tests.heterogeneity.draws import Z, world
from tests.shares import one_in

ROUNDS = 3000


def exact_sets(weights, size):
    """P(S) of every set: sum over its orders of prod_j q_j/(1 - q of those before)."""
    q, sets = np.array(weights) / sum(weights), {}
    for order in permutations(np.flatnonzero(q).tolist(), size):
        p, left = 1.0, 1.0
        for client in order:
            p, left = p * q[client] / left, left - q[client]
        key = tuple(sorted(order))
        sets[key] = sets.get(key, 0.0) + p
    assert abs(sum(sets.values()) - 1) < 1e-12
    return sets


def seen_sets(process, count, rounds=ROUNDS):
    where, seen = world(count, seed=5), {}
    for r in range(rounds):
        key = tuple(process.draw(r, where).cohort.tolist())
        seen[key] = seen.get(key, 0) + 1 / rounds
    return seen


def assert_same_distribution(seen, exact):
    assert set(seen) <= set(exact)
    for key, p in exact.items():
        assert abs(seen.get(key, 0.0) - p) < Z * math.sqrt(p * (1 - p) / ROUNDS)


@pytest.mark.parametrize(
    ("weights", "size"),
    one_in(3, [(w, m) for m in (3, 1, 2) for w in ([1.0, 2.0, 3.0, 4.0], [0.6, 0.0, 0.2, 0.1, 0.1])]),
)
def test_sets_are_as_likely_as_successive_draws_make_them(weights, size):
    process = Weighted(size=size, weights=weights)
    assert_same_distribution(seen_sets(process, len(weights)), exact_sets(weights, size))


def test_weights_are_renormalised_among_the_available_of_positive_weight():
    there = {"name": "bernoulli", "p": [1.0, 0.0, 1.0, 1.0, 0.0]}
    process = Weighted(size=2, weights=[1.0, 9.0, 2.0, 3.0, 9.0], availability=there)
    assert_same_distribution(seen_sets(process, 5), exact_sets([1.0, 0.0, 2.0, 3.0, 0.0], 2))
    process = Weighted(size=3, weights=[0.0, 1.0, 0.0, 2.0])
    assert seen_sets(process, 4, 20) == {(1, 3): pytest.approx(1.0)}


def test_weights_by_name_are_shares_of_samples_or_uniform_plus_a_hundredth():
    where = RunContext(0, Population.of(np.full(5000, 1)), 1)
    q = Weighted(size=2, weights="random").probabilities(where)
    raw = q * (0.51 * 5000)  # the mean weight is 0.51 up to 0.29/sqrt(5000)
    assert abs(q.sum() - 1) < 1e-12
    assert 0.0095 < raw.min() < 0.0125
    assert 0.99 < raw.max() < 1.03
    assert (q == Weighted(size=3, weights="random", replace=True).probabilities(where)).all()
    where = RunContext(0, Population.of(np.array([10, 0, 30])), 1)
    assert Weighted(size=1, weights="data_size").probabilities(where).tolist() == [0.25, 0.0, 0.75]
