"""The aggregation rules and their expectations, against enumeration of all outcomes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from raylfl.algorithms.aggregation import RULES, inverse_count
from raylfl.core.population import Population, Round, SystemInfo
from raylfl.errors import BadValue


def system(weights: np.ndarray, failure: np.ndarray) -> SystemInfo:
    n = len(weights)
    population = Population(np.ones(n, dtype=np.int64), weights)
    return SystemInfo(0, population, failure, np.ones(n), np.ones(n, dtype=bool), 0.1, n)


def round_of(c: SystemInfo, draws: np.ndarray, received: np.ndarray, p: np.ndarray | None = None) -> Round:
    """The round in which client i was drawn draws[i] times."""
    ids = np.flatnonzero(draws)
    one = np.ones(len(ids), dtype=np.int64)
    inclusion = np.full(len(ids), np.nan) if p is None else p[ids]
    return Round(0, ids, draws[ids], received[ids], one, one, 0.1, c.population, one * 1.0, c.failure[ids], inclusion)


def enumerated(rule: str, c: SystemInfo, asked: list[tuple[float, np.ndarray]], p: np.ndarray | None = None):
    """E[c_i 1{i in R}]: over (probability, draws [N]) of the cohort and every outcome of its links."""
    n, total = c.population.count, np.zeros(c.population.count)
    for chance, draws in asked:
        for arrived in itertools.product([False, True], repeat=n):
            got = np.array(arrived) & (draws > 0)
            if (np.array(arrived) & (draws == 0)).any() or not got.any():
                continue
            links = np.prod(np.where(got, 1 - c.failure, np.where(draws > 0, c.failure, 1.0)))
            r = round_of(c, draws, got, p).received_view
            total[r.cohort] += chance * links * RULES[rule].coefficients(r)
    return total


def subsets(pi: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """Every cohort of independent clients with its probability."""
    return [
        (float(np.prod(np.where(there, pi, 1 - pi))), np.array(there, dtype=np.int64))
        for there in itertools.product([0, 1], repeat=len(pi))
    ]


def with_replacement(p: np.ndarray, size: int) -> list[tuple[float, np.ndarray]]:
    """Every sequence of `size` draws from p."""
    return [
        (float(np.prod(p[list(drawn)])), np.bincount(drawn, minlength=len(p)))
        for drawn in itertools.product(range(len(p)), repeat=size)
    ]


def without_replacement(n: int, size: int) -> list[tuple[float, np.ndarray]]:
    """Every cohort of `size` of n clients, equally likely."""
    cohorts = list(itertools.combinations(range(n), size))
    return [(1 / len(cohorts), np.bincount(ids, minlength=n)) for ids in cohorts]


def assert_proportional(ours: np.ndarray | None, theirs: np.ndarray) -> None:
    assert ours is not None
    np.testing.assert_allclose(ours / ours.sum(), theirs / theirs.sum(), rtol=1e-12)


def test_weighted_with_equal_weights_is_mean():
    rng = np.random.default_rng(1)
    c, pi = system(np.full(5, 0.2), rng.uniform(0, 0.6, 5)), rng.uniform(0.05, 1, 5)
    assert_proportional(RULES["weighted"].expected(c, pi, "independent"), enumerated("weighted", c, subsets(pi)))


def test_expected_coefficients_of_importance_sampling_match_enumeration():
    rng, rule = np.random.default_rng(2), "anonymous_importance"
    c, p = system(rng.dirichlet(np.ones(4)), rng.uniform(0, 0.6, 4)), rng.dirichlet(np.ones(4))
    assert_proportional(
        RULES[rule].expected(c, 3 * p, "with_replacement"), enumerated(rule, c, with_replacement(p, 3), p)
    )


LAWS = {
    "independent": lambda rng, n: (pi := rng.uniform(0.1, 1, n), subsets(pi)),
    "with_replacement": lambda rng, n: (n * (p := rng.dirichlet(np.ones(n))), with_replacement(p, n)),
    "uniform with replacement": lambda rng, n: (np.ones(n), with_replacement(np.full(n, 1 / n), n)),
    "without_replacement": lambda rng, n: (np.full(n, 2 / n), without_replacement(n, 2)),
}
WITHOUT_VALUE = {  # random denominators: (rule, draws), with lossy links and over perfect links
    True: {("mean", draws) for draws in LAWS if draws != "independent"} | {("weighted", draws) for draws in LAWS},
    False: {("weighted", draws) for draws in LAWS},
}


@pytest.mark.parametrize("lossy", [True, False])
@pytest.mark.parametrize("draws", LAWS)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "anonymous_importance"])
def test_expected_coefficients_under_each_law_match_enumeration_or_are_left_out(rule, draws, lossy):
    rng = np.random.default_rng(7)
    c = system(rng.dirichlet(np.ones(4)), rng.uniform(0.1, 0.6, 4) * lossy)
    marginals, outcomes = LAWS[draws](rng, 4)
    found = RULES[rule].expected(c, marginals, "with_replacement" if " " in draws else draws)
    assert (found is None) == ((rule, draws) in WITHOUT_VALUE[lossy])
    if found is not None:
        assert_proportional(found, enumerated(rule, c, outcomes))


@pytest.mark.parametrize("rule", ["mean", "weighted"])
def test_equal_expected_uploads_of_unequal_links_do_not_make_clients_exchangeable(rule):
    """E[s_i] (1 - q_i) is equal, but a lost upload loses all draws of its client at once."""
    q, p = np.array([0.0, 0.5, 0.5]), np.array([0.2, 0.4, 0.4])
    c = system(np.full(3, 1 / 3), q)
    assert np.ptp(enumerated(rule, c, with_replacement(p, 3))) > 0.01
    assert RULES[rule].expected(c, 3 * p, "with_replacement") is None


@pytest.mark.parametrize("rule", RULES)
def test_without_a_known_law_only_what_the_expected_draws_determine_is_given(rule):
    c = system(np.array([0.6, 0.3, 0.1]), np.zeros(3))
    if rule != "anonymous_importance":  # defined for draws with replacement only
        assert RULES[rule].expected(c, np.ones(3), None) is None
        known = RULES[rule].expected(c, np.ones(3), "at_most_once") is not None
        assert known == (rule in ("mean", "weighted", "full"))


def test_importance_sampling_never_receives_a_client_of_probability_zero():
    c, p = system(np.full(3, 1 / 3), np.zeros(3)), np.array([0.5, 0.5, 0.0])
    np.testing.assert_array_equal(
        RULES["anonymous_importance"].expected(c, 2 * p, "with_replacement") > 0, [True, True, False]
    )


@pytest.mark.parametrize("rule", ["mean", "weighted"])
def test_full_participation_over_perfect_links_leaves_nothing_to_chance(rule):
    weights = np.random.default_rng(5).dirichlet(np.ones(5))
    known = RULES[rule].expected(system(weights, np.zeros(5)), np.ones(5), "independent")
    assert_proportional(known, np.ones(5) if rule == "mean" else weights)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.01), (0.95, 1)])
def test_inverse_count_of_many_clients_matches_the_poisson_binomial_law(low, high):
    """E[1_i/|R|] = pi_i sum_k P(k others) / (1 + k), the law of k by convolution."""
    pi = np.random.default_rng(6).uniform(low, high, 1500)
    law = np.array([1.0])
    for other in pi[1:]:
        law = np.append(law * (1 - other), 0.0) + np.append(0.0, law * other)
    first = pi[0] * np.sum(law / (1 + np.arange(len(law))))
    found = inverse_count(pi)
    assert found[0] == pytest.approx(first, rel=1e-10)
    assert found.sum() == pytest.approx(1 - np.exp(np.log1p(-pi).sum()), rel=1e-10)  # P(some upload is received)


def test_importance_needs_the_sampling_probabilities():
    c = system(np.full(3, 1 / 3), np.zeros(3))
    r = round_of(c, np.ones(3, dtype=np.int64), np.ones(3, dtype=bool)).received_view
    with pytest.raises(BadValue, match="sampling probabilities"):
        RULES["anonymous_importance"].coefficients(r)
    with pytest.raises(BadValue, match="sampling probabilities"):
        RULES["anonymous_importance"].coefficients(replace(r, inclusion=np.array([0.5, np.nan, 0.5])))
    known = replace(r, inclusion=np.full(3, 1 / 3))
    np.testing.assert_allclose(RULES["anonymous_importance"].coefficients(known), np.full(3, 1 / 3))


@pytest.mark.parametrize("rule", RULES)
def test_a_round_that_receives_only_clients_of_weight_0_is_their_uniform_mean_or_no_step(rule):
    """`weighted` divides by the received weights; the rules that multiply by w_i move nothing."""
    c = system(np.array([0.0, 0.0, 1.0]), np.zeros(3))
    r = round_of(c, np.array([1, 1, 0]), np.array([True, True, False]), np.full(3, 1 / 3)).received_view
    alike = 0.5 if rule in ("mean", "weighted", "anonymous") else 0.0
    assert RULES[rule].coefficients(r).tolist() == [alike, alike]
