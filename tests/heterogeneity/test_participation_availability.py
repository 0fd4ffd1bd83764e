"""Only available clients are sampled, at the right frequencies; empty rounds are skipped or redrawn."""

import math

import numpy as np
import pytest

from raylfl.heterogeneity.participation import sample_with_replacement
from tests.counting import steps_in
from tests.heterogeneity.draws import COUNT, ROUNDS, Z, build, draws_of, world


def test_resampling_leaves_no_round_empty_and_conditions_the_frequencies():
    """p/(1 - e) with e the probability of an empty round: Bernoulli(0.2) for two clients, e = 0.64."""
    where = world(count=2)
    skip, resample = build("bernoulli", p=0.2), build("bernoulli", p=0.2, on_empty="resample")
    empty = (draws_of(skip, where).sum(axis=1) == 0).mean()
    assert abs(empty - 0.64) < Z * math.sqrt(0.64 * 0.36 / ROUNDS)
    asked = draws_of(resample, where)
    assert (asked.sum(axis=1) > 0).all()
    p = 0.2 / (1 - 0.64)
    assert (abs(asked.mean(axis=0) - p) < Z * math.sqrt(p * (1 - p) / ROUNDS)).all()
    np.testing.assert_allclose(resample.marginals(where, 0), p, rtol=1e-12)


def test_resampling_of_rare_clients_counts_its_last_empty_draw():
    """Two clients with p = 0.001: after 100 draws the round stays empty with probability 0.998^200 = 0.82."""
    p, where = 0.001, world(count=2)
    expected = sum(p * (1 - p) ** (2 * t) for t in range(100))
    process = build("bernoulli", p=p, on_empty="resample")
    np.testing.assert_allclose(process.marginals(where, 0), expected, rtol=1e-12)


def test_resampling_gives_up_if_no_client_is_ever_available():
    process = build("bernoulli", p=0.0, on_empty="resample")
    assert len(process.draw(0, world()).cohort) == 0
    assert process.marginals(world(), 0).tolist() == [0.0] * COUNT


def test_a_non_empty_round_is_the_same_with_and_without_resampling():
    skip, resample = build("bernoulli", p=0.1), build("bernoulli", p=0.1, on_empty="resample")
    one, two = draws_of(skip, world(), 200), draws_of(resample, world(), 200)
    there = one.sum(axis=1) > 0
    assert np.array_equal(one[there], two[there])
    assert not there.all()


@pytest.mark.parametrize("name", ["uniform", "weighted", "permutation", "cyclic"])
def test_a_sampler_samples_only_available_clients(name):
    process = build(name, size=4, availability={"name": "bernoulli", "p": 0.5})
    for r in range(200):
        there = process.eligible(r, world())
        cohort = process.draw(r, world()).cohort
        assert there[cohort].all()
        if name in ("uniform", "weighted"):
            assert len(cohort) == min(4, there.sum())


def test_sampling_among_the_available_is_uniform_over_them():
    first_four = {"name": "bernoulli", "p": [1.0] * 4 + [0.0] * 8}
    asked = draws_of(build("uniform", size=2, availability=first_four), world())
    assert (asked[:, 4:] == 0).all()
    assert (abs(asked[:, :4].mean(axis=0) - 0.5) < Z * math.sqrt(0.25 / ROUNDS)).all()


def test_availability_is_resampled_for_a_sampler():
    rare = {"name": "bernoulli", "p": 0.02}
    sizes = draws_of(build("uniform", size=3, availability=rare, on_empty="resample"), world(), 200).sum(axis=1)
    assert sizes.min() == 1


def test_sampling_with_replacement_renormalises_over_the_available():
    where, p = world(count=5), np.array([1.0, 2.0, 3.0, 0.0, 4.0])
    available = np.array([True, True, False, True, True])
    total = np.zeros(5)
    for r in range(3000):
        drawn = sample_with_replacement(p, 4, r, where, available)
        assert drawn.draws.sum() == 4
        total[drawn.cohort] += drawn.draws
    expected = np.array([1, 2, 0, 0, 4]) / 7
    assert total[2] == total[3] == 0
    assert (abs(total / 12000 - expected) <= Z * np.sqrt(expected * (1 - expected) / 12000)).all()


def test_sampling_from_no_available_client_is_an_empty_round():
    where = world(count=3)
    assert len(sample_with_replacement(np.ones(3), 4, 0, where, np.zeros(3, dtype=bool)).cohort) == 0
    assert len(sample_with_replacement(np.array([0.0, 0, 1]), 4, 0, where, np.array([1, 1, 0], dtype=bool)).cohort) == 0


def test_an_algorithms_own_p_meets_availability_and_on_empty():
    rare = {"name": "bernoulli", "p": 0.05}
    process = build("uniform", size=6, availability=rare, on_empty="resample")
    p = np.linspace(0, 1, COUNT)
    for r in range(100):
        drawn = process.draw_from(p, r, world())
        assert drawn.draws.sum() == 6
        assert 0 not in drawn.cohort  # p_0 = 0


@pytest.mark.parametrize(("name", "options"), [("markov", {"p_on": 0.1, "p_off": 0.3}), ("bernoulli", {"p": 0.1})])
def test_a_million_clients_are_drawn_without_a_loop_over_them(name, options):
    where = world(count=10**6)
    process = build("weighted", size=100, availability={"name": name, **options})
    assert len(process.draw(0, where).cohort) == 100
    assert steps_in(lambda: process.draw(1, where)) < 2000
