"""Markov availability: stationary from the start, geometric spells, each round computable without earlier rounds."""

import math

import numpy as np
import pytest

from raylfl.heterogeneity.participation.availability import Markov
from tests.heterogeneity.draws import Z, world

ROUNDS = 150
RATES = [(0.05, 0.2), (0.5, 0.5), (0.9, 0.7), (0.3, 1.0)]  # sluggish, memoryless, alternating, one at a time


def states(process, where=None, rounds=ROUNDS):
    """bool [R, N]"""
    return np.array([process.available(r, where or world(400)) for r in range(rounds)])


@pytest.mark.parametrize(("p_on", "p_off"), RATES)
@pytest.mark.parametrize(("r", "attempt"), [(0, 0), (1, 0), (70, 0), (0, 3)])
def test_every_round_and_a_redrawn_first_round_are_stationary(p_on, p_off, r, attempt):
    """Clients are independent, so one round of 4000 is a binomial sample."""
    pi = p_on / (p_on + p_off)
    on = Markov(p_on, p_off).available(r, world(4000), attempt)
    assert abs(on.mean() - pi) < Z * math.sqrt(pi * (1 - pi) / 4000)


@pytest.mark.parametrize(("p_on", "p_off"), RATES)
def test_transitions_happen_as_often_as_the_rates_say(p_on, p_off):
    on = states(Markov(p_on, p_off))
    before, after = on[:-1], on[1:]
    for start, rate, moved in ((False, p_on, after), (True, p_off, ~after)):
        tries = (before == start).sum()
        seen = (moved & (before == start)).sum() / tries
        assert abs(seen - rate) <= Z * math.sqrt(rate * (1 - rate) / tries)


@pytest.mark.parametrize(("p_on", "p_off"), [*RATES, (1.0, 1.0), (0.01, 0.01), ({"linspace": [0.1, 1]}, 0.5)])
def test_a_round_computed_alone_equals_the_round_computed_in_sequence(p_on, p_off):
    """Also by an instance that serves several seeds."""
    walked = {seed: states(Markov(p_on, p_off), world(30, seed)) for seed in (0, 1)}
    jumping = Markov(p_on, p_off)
    for r in (149, 10, 11, 80, 0, 148):
        for seed, rounds in walked.items():
            for process in (Markov(p_on, p_off), jumping):
                assert np.array_equal(process.available(r, world(30, seed)), rounds[r])


def test_a_matrix_says_the_same_as_two_rates_of_which_zero_and_one_mean_never_and_always():
    matrix = Markov(matrix=[[0.9, 0.1], [0.25, 0.75]])
    assert np.array_equal(states(matrix, rounds=20), states(Markov(0.1, 0.25), rounds=20))
    np.testing.assert_allclose(matrix.marginals(world(3), 5), 0.1 / 0.35, rtol=1e-12)
    assert states(Markov(1.0, 0.0), world(20), 30).all()
    assert not states(Markov(0.0, 1.0), world(20), 30).any()


def test_resampling_redraws_the_step_and_leaves_the_chain_alone():
    skip, resample = Markov(0.05, 0.5), Markov(0.05, 0.5, on_empty="resample")
    where = world(8)
    plain = states(skip, where)
    asked = [resample.draw(r, where).cohort for r in range(ROUNDS)]
    empty = plain.sum(axis=1) == 0
    assert empty.any()
    assert all(len(cohort) for cohort in asked)
    for r in np.flatnonzero(~empty):
        assert np.array_equal(asked[r], np.flatnonzero(plain[r]))
    assert resample.marginals(where, 0) is None


@pytest.mark.parametrize(("p_on", "p_off"), RATES)
@pytest.mark.parametrize("r", [1, 2, 70])
def test_a_redrawn_step_follows_the_rates_from_the_round_before(p_on, p_off, r):
    """P(on | on before) = 1 - p_off, P(on | off before) = p_on, and a redraw is independent of the first draw."""
    process, many = Markov(p_on, p_off, on_empty="resample"), world(4000)
    before, first, again = process.available(r - 1, many), process.available(r, many), process.available(r, many, 1)
    for there, chance in ((before, 1 - p_off), (~before, p_on)):
        for group in (there & first, there & ~first):
            tries = max(int(group.sum()), 1)
            assert abs(again[group].sum() / tries - chance) <= Z * math.sqrt(chance * (1 - chance) / tries) or tries < 5
    assert not np.array_equal(again, process.available(r, many, 2)) or p_on == p_off == 1
