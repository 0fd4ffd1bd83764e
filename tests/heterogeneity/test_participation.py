"""Participation processes: one contract; cohort sizes, frequencies and joint frequencies; availability; turns."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.errors import BadValue
from raylfl.heterogeneity.participation import PARTICIPATION, sample_with_replacement
from tests.counting import steps_in
from tests.heterogeneity.draws import COUNT, ROUNDS, SPREAD, Z, build, draws_of, world

PROCESSES = [
    ("full", {}),
    ("uniform", {"size": 5}),
    ("uniform", {"fraction": 0.5}),
    ("uniform", {"size": 5, "replace": True}),
    ("uniform", {"size": 5, "availability": {"name": "bernoulli", "p": 0.5}}),
    ("weighted", {"size": 4}),
    ("weighted", {"size": 4, "replace": True}),
    ("weighted", {"size": 4, "weights": "data_size", "replace": True}),
    ("weighted", {"size": 4, "availability": {"name": "markov", "p_on": 0.2, "p_off": 0.5}}),
    ("bernoulli", {}),
    ("bernoulli", {"p": SPREAD}),
    ("bernoulli", {"p": 0.05, "on_empty": "resample"}),
    ("markov", {"p_on": 0.4, "p_off": 0.3}),
    ("markov", {"p_on": 0.9, "p_off": SPREAD}),
    ("cyclic", {"size": 2, "groups": 4}),
    ("cyclic", {"size": 2, "groups": 4, "reshuffle": False, "availability": {"name": "bernoulli", "p": 0.5}}),
    ("sinusoid", {"p": SPREAD}),
    ("staircase", {"p": SPREAD}),
    ("permutation", {"size": 5}),
]  # fmt: skip
IDS = [f"{name}-{index}" for index, (name, _) in enumerate(PROCESSES)]


everyone = pytest.mark.parametrize(("name", "options"), PROCESSES, ids=IDS)


def test_every_registered_process_but_trace_is_under_contract():
    assert {name for name, _ in PROCESSES} | {"trace"} == set(PARTICIPATION.names())


@everyone
def test_a_cohort_is_distinct_ascending_and_a_function_of_seed_and_round(name, options):
    """Rounds may be drawn in any order and by any instance, so that a resumed run continues unchanged."""
    process, where = build(name, **options), world()
    process.check(where)
    forward = [process.draw(r, where) for r in range(60)]
    for drawn in forward:
        assert drawn.cohort.dtype == drawn.draws.dtype == np.int64
        assert drawn.cohort.shape == drawn.draws.shape
        assert (np.diff(drawn.cohort) > 0).all()
        assert set(drawn.cohort.tolist()) <= set(range(COUNT))
        assert (drawn.draws >= 1).all()
    for r in (39, 3, 17, 0, 38, 3):
        for again in (build(name, **options).draw(r, where), process.draw(r, where)):
            assert np.array_equal(again.cohort, forward[r].cohort)
            assert np.array_equal(again.draws, forward[r].draws)
    if name != "full":
        table, other = draws_of(process, where, 40), draws_of(build(name, **options), world(seed=1), 40)
        assert (table != other).any()
        assert (table[0] != table[1:]).any()


@everyone
def test_clients_are_drawn_with_their_marginal_frequencies(name, options):
    process, where = build(name, **options), world()
    nominal = [process.marginals(where, r) for r in range(ROUNDS)]
    if nominal[0] is None:
        assert name in ("cyclic", "permutation") or "availability" in options or name == "weighted"
        return
    error = draws_of(process, where) - np.array(nominal)
    # Rounds of a chain with correlation rho = 1 - p_on - p_off have (1 + rho)/(1 - rho) times the variance.
    inflation = math.sqrt(1.3 / 0.7) if name == "markov" else 1.0  # rho <= 0.3 here
    bound = Z * inflation * error.std(axis=0) / math.sqrt(ROUNDS)
    assert (abs(error.mean(axis=0)) <= bound + 1e-12).all()


@pytest.mark.parametrize("size", [1, 5, 12])
@pytest.mark.parametrize("name", ["uniform", "weighted", "permutation", "cyclic"])
def test_a_sampler_samples_exactly_m_clients(name, size):
    assert set(draws_of(build(name, size=size), world(), 30).sum(axis=1)) == {size}


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


def test_seasons_follow_their_formulas():
    p, a, period, rounds = np.linspace(0.05, 0.95, COUNT), 0.4, 20, np.arange(40)
    process = build("sinusoid", p=SPREAD, amplitude=a, period=period)
    expected = np.outer(a * np.sin(2 * np.pi * rounds / period) + 1 - a, p)
    np.testing.assert_allclose([process.marginals(world(), r) for r in rounds], expected, rtol=1e-12)
    process = build("staircase", p=0.5)
    factors = [process.marginals(world(), r)[0] / 0.5 for r in rounds]
    np.testing.assert_allclose(factors, ([1.0] * 10 + [0.4] * 10) * 2, rtol=1e-12)


@given(groups=st.integers(1, 9), extra=st.integers(0, 8), epoch=st.integers(0, 5), reshuffle=st.booleans())
def test_an_epoch_of_cyclic_passes_every_group_once(groups, extra, epoch, reshuffle):
    where = world(count=groups + extra)
    process = build("cyclic", groups=groups, size=1, reshuffle=reshuffle)
    seen = [process.group(epoch * groups + turn, where).tolist() for turn in range(groups)]
    assert sorted(i for group in seen for i in group) == list(range(groups + extra))
    assert max(map(len, seen)) - min(map(len, seen)) <= 1
    for turn in range(groups):
        r = epoch * groups + turn
        assert process.draw(r, where).cohort[0] in seen[turn]


def test_cyclic_reshuffles_the_groups_every_epoch_or_never_and_one_group_is_uniform_sampling():
    def orders(**options):
        process = build("cyclic", groups=6, size=1, **options)
        return {tuple(int(process.group(e * 6 + t, world())[0]) for t in range(6)) for e in range(30)}

    assert len(orders()) > 20
    assert len(orders(reshuffle=False)) == 1
    asked = draws_of(build("cyclic", groups=1, size=3), world())
    assert (abs(asked.mean(axis=0) - 0.25) < Z * math.sqrt(0.25 * 0.75 / ROUNDS)).all()
    one_by_one = build("cyclic", groups=COUNT, size=1)
    one_by_one.check(world())
    ring = draws_of(one_by_one, world(), COUNT * 5)
    assert (ring.reshape(5, COUNT, COUNT).sum(axis=1) == 1).all()


@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_a_pass_samples_every_client_once_and_the_next_pass_in_the_same_order(size):
    asked = draws_of(build("permutation", size=size), world(), 3 * COUNT // size)
    sweeps = asked.reshape(3, COUNT // size, COUNT)
    assert (sweeps.sum(axis=1) == 1).all()
    assert (sweeps == sweeps[0]).all()


@given(size=st.integers(1, 12), first=st.integers(0, 50))
def test_a_permutation_samples_all_clients_equally_often_over_n_rounds(size, first):
    process = build("permutation", size=size)
    asked = [process.draw(r, world()).cohort for r in range(first, first + COUNT)]
    assert np.bincount(np.concatenate(asked), minlength=COUNT).tolist() == [size] * COUNT


def test_resampling_leaves_no_round_empty_and_conditions_the_frequencies():
    """p/(1 - e) with e the probability of an empty round: Bernoulli(0.2) for two clients, e = 0.64."""
    where = world(count=2)
    skip, resample = build("bernoulli", p=0.2), build("bernoulli", p=0.2, on_empty="resample")
    plain, asked = draws_of(skip, where), draws_of(resample, where)
    empty = plain.sum(axis=1) == 0
    assert abs(empty.mean() - 0.64) < Z * math.sqrt(0.64 * 0.36 / ROUNDS)
    assert np.array_equal(plain[~empty], asked[~empty])
    assert (asked.sum(axis=1) > 0).all()
    p = 0.2 / (1 - 0.64)
    assert (abs(asked.mean(axis=0) - p) < Z * math.sqrt(p * (1 - p) / ROUNDS)).all()
    np.testing.assert_allclose(resample.marginals(where, 0), p, rtol=1e-12)
    # two clients with p = 0.001: after 100 draws the round stays empty with probability 0.998^200 = 0.82
    p, where = 0.001, world(count=2)
    expected = sum(p * (1 - p) ** (2 * t) for t in range(100))
    process = build("bernoulli", p=p, on_empty="resample")
    np.testing.assert_allclose(process.marginals(where, 0), expected, rtol=1e-12)
    process = build("bernoulli", p=0.0, on_empty="resample")
    assert len(process.draw(0, world()).cohort) == 0
    assert process.marginals(world(), 0).tolist() == [0.0] * COUNT


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
    expected = np.array([0.5] * 4 + [0.0] * 8)
    assert (abs(asked.mean(axis=0) - expected) <= Z * np.sqrt(expected * (1 - expected) / ROUNDS)).all()


def test_sampling_with_replacement_renormalises_over_the_available_if_there_are_any():
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
def test_a_hundred_thousand_clients_are_drawn_without_a_loop_over_them(name, options):
    where = world(count=10**5)
    process = build("weighted", size=100, availability={"name": name, **options})
    assert len(process.draw(0, where).cohort) == 100
    assert steps_in(lambda: process.draw(1, where)) < 2000
