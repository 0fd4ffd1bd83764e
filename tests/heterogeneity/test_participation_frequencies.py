"""Cohort sizes and frequencies of uniform and Bernoulli draws, constant or varying in time, against closed forms."""

import math

import numpy as np
import pytest

from raylfl.errors import BadValue
from tests.heterogeneity.draws import COUNT, SPREAD, Z, build, draws_of, world


@pytest.mark.parametrize("size", [1, 5, 12])
@pytest.mark.parametrize("name", ["uniform", "weighted", "permutation", "cyclic"])
def test_a_sampler_samples_exactly_m_clients(name, size):
    process = build(name, size=size)
    assert {draws_of(process, world(), 30)[r].sum() for r in range(30)} == {size}


@pytest.mark.parametrize(
    ("fraction", "count", "size"), [(0.3, 20, 6), (0.1, 100, 10), (0.25, 10, 3), (0.01, 10, 1), (1.0, 7, 7)]
)
def test_a_fraction_is_rounded_and_at_least_one(fraction, count, size):
    assert build("uniform", fraction=fraction).cohort_size(world(count=count)) == size


def test_uniform_pairs_are_equally_likely():
    """Every pair has probability M(M-1)/(N(N-1)) without replacement: sets are uniform, not only clients."""
    asked = draws_of(build("uniform", size=4), world(count=6), 4000)
    p = 4 * 3 / (6 * 5)
    together = (asked.T @ asked / 4000)[np.triu_indices(6, 1)]
    assert (abs(together - p) < Z * math.sqrt(p * (1 - p) / 4000)).all()


def test_draws_with_replacement_are_binomial():
    draws = draws_of(build("uniform", size=4, replace=True), world(count=5), 4000)
    assert (draws.sum(axis=1) == 4).all()
    second = 4 * 3 / 25  # E[s(s-1)] = M(M-1)/N^2
    falling = (draws * (draws - 1)).mean(axis=0)
    assert (abs(falling - second) < Z * (draws * (draws - 1)).std(axis=0) / math.sqrt(4000)).all()


@pytest.mark.parametrize("name", ["uniform", "weighted"])
def test_more_draws_than_clients_are_possible_with_replacement_alone(name):
    process = build(name, size=30, replace=True)
    process.check(world())
    assert (draws_of(process, world(), 20).sum(axis=1) == 30).all()
    with pytest.raises(BadValue, match=r"size=30, but must be 1..12, .* \(replace: true has no such bound\)"):
        build(name, size=30).check(world())


def test_bernoulli_clients_are_independent():
    asked = draws_of(build("bernoulli", p=0.4), world(), 4000)
    across = np.corrcoef(asked.T)[np.triu_indices(COUNT, 1)]
    along = [np.corrcoef(asked[:-1, i], asked[1:, i])[0, 1] for i in range(COUNT)]
    assert (abs(np.concatenate([across, along])) < Z / math.sqrt(4000)).all()


def test_bernoulli_defaults_to_the_ranges_of_focus():
    p = build("bernoulli").marginals(world(count=1000), 0)
    assert ((p > 0.1) & (p < 0.9)).all()
    beyond = (p > 0.3).sum()  # 100 clients of U(0.1, 0.9): three quarters of them
    assert abs(beyond - 75) < Z * math.sqrt(100 * 0.75 * 0.25)


@pytest.mark.parametrize("r", [0, 3, 5, 15, 20, 27])
def test_sinusoid_follows_its_formula(r):
    p, a, period = np.linspace(0.05, 0.95, COUNT), 0.4, 20
    process = build("sinusoid", p=SPREAD, amplitude=a, period=period)
    expected = p * (a * np.sin(2 * np.pi * r / period) + 1 - a)
    np.testing.assert_allclose(process.marginals(world(), r), expected, rtol=1e-12)


def test_staircase_alternates_between_1_and_0_4_every_ten_rounds():
    process = build("staircase", p=0.5)
    factors = [process.marginals(world(), r)[0] / 0.5 for r in range(40)]
    np.testing.assert_allclose(factors, ([1.0] * 10 + [0.4] * 10) * 2, rtol=1e-12)
