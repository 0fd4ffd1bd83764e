"""Every participation process: the same contract."""

import math

import numpy as np
import pytest

from raylfl.heterogeneity.participation import PARTICIPATION
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
def test_a_round_is_a_function_of_seed_and_round(name, options):
    """Rounds may be drawn in any order and by any instance, so that a resumed run continues unchanged."""
    process, where = build(name, **options), world()
    forward = [process.draw(r, where) for r in range(40)]
    for r in (39, 3, 17, 0, 38, 3):
        again = build(name, **options).draw(r, where)
        revisited = process.draw(r, where)
        for other in (again, revisited):
            assert np.array_equal(other.cohort, forward[r].cohort)
            assert np.array_equal(other.draws, forward[r].draws)


@everyone
def test_a_cohort_is_distinct_ascending_and_aligned(name, options):
    process, where = build(name, **options), world()
    process.check(where)
    for r in range(100):
        drawn = process.draw(r, where)
        assert drawn.cohort.dtype == drawn.draws.dtype == np.int64
        assert (np.diff(drawn.cohort) > 0).all()
        assert drawn.cohort.shape == drawn.draws.shape
        assert (drawn.draws >= 1).all()
        assert ((drawn.cohort >= 0) & (drawn.cohort < COUNT)).all()


@everyone
def test_seeds_and_rounds_differ(name, options):
    if name == "full":
        return
    process = build(name, **options)
    one, two = draws_of(process, world(0), 40), draws_of(build(name, **options), world(1), 40)
    assert (one != two).any()
    assert (one[0] != one[1:]).any()


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


@everyone
def test_every_client_comes_at_last(name, options):
    assert (draws_of(build(name, **options), world(), 400).sum(axis=0) > 0).all()
