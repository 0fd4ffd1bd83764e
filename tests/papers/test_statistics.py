"""Statistics for claims, against closed forms, scipy's own tests and simulations."""

import math

import numpy as np
import pytest
from scipy import stats

from papers.numbers import bootstrap_mean, difference, effective_count, level
from raylfl.errors import BadValue
from raylfl.report.statistics import ALPHA, paired_test
from tests.shares import also


def autoregressive(rng, n, phi):
    """x_t = phi x_(t-1) + e_t, from its stationary distribution; the effective count tends to n (1-phi)/(1+phi)."""
    x = np.empty(n)
    x[0] = rng.normal() / math.sqrt(1 - phi**2)
    for t in range(1, n):
        x[t] = phi * x[t - 1] + rng.normal()
    return x


def test_the_bootstrap_interval_of_independent_values_is_the_normal_one():
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    found = bootstrap_mean(values)
    half = 1.96 * values.std(ddof=1) / 20
    assert found.mean == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * half, rel=0.15)


def test_the_interval_of_dependent_rounds_is_wider_than_their_number_says():
    values = autoregressive(np.random.default_rng(1), 2000, 0.8)
    naive = 2 * 1.96 * values.std(ddof=1) / math.sqrt(2000)
    found = bootstrap_mean(values)
    assert found.high - found.low > 1.7 * naive  # the exact factor is 3; short blocks capture part of it


def test_the_interval_covers_the_mean_about_as_often_as_its_level():
    rng = np.random.default_rng(2)
    hits = sum(bootstrap_mean(rng.normal(size=60), seed=i).covers(0.0) for i in range(300))
    assert 0.89 < hits / 300 < 0.98


@pytest.mark.parametrize("seeds", [also(2), 3])
def test_intervals_of_few_seeds_cover_a_difference_as_often_as_their_level(seeds):
    """Seeds that differ more than the rounds of a run."""
    rng = np.random.default_rng(9)
    cases = [0.3 + rng.normal(size=(seeds, 1)) + 0.5 * rng.normal(size=(seeds, 40)) for _ in range(400)]
    zeros = np.zeros((seeds, 40))
    tested = np.mean([paired_test(rows, zeros).difference.covers(0.3) for rows in cases])
    assert 0.92 < tested < 0.98  # 0.95 -+ 3 standard errors of 400 cases


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.9, 2.0])
def test_equivalence_is_two_one_sided_t_tests(shift):
    """scipy's ttest_ind of shifted samples, where nothing is autocorrelated (seed with no positive first lag)."""
    rng = np.random.default_rng(11)
    a, b = alternating(rng, 30) + shift, alternating(rng, 40)
    assert (effective_count(a), effective_count(b)) == (30, 40)
    found = difference(level(a), level(b), 1 - 2 * ALPHA)
    above = stats.ttest_ind(a + 1.0, b, equal_var=False, alternative="greater").pvalue
    below = stats.ttest_ind(a - 1.0, b, equal_var=False, alternative="less").pvalue
    assert (max(above, below) < ALPHA) == (found.low > -1 and found.high < 1)


def alternating(rng, n):
    """Values whose neighbours lie on opposite sides, so that no autocorrelation at lag 1 is positive."""
    return np.abs(rng.normal(size=n)) * np.where(np.arange(n) % 2, 1.0, -1.0)


def test_equivalence_is_wrongly_found_in_no_more_than_alpha_of_the_cases():
    """True difference at the margin: the worst case of the null hypothesis."""
    rng = np.random.default_rng(5)
    cases = [(rng.normal(1.0, 1.0, 25), rng.normal(0.0, 1.0, 25)) for _ in range(600)]
    found = [difference(level(a), level(b), 1 - 2 * ALPHA) for a, b in cases]
    assert np.mean([interval.low > -1 and interval.high < 1 for interval in found]) < 0.08


def test_a_published_mean_counts_as_its_number_of_seeds():
    a = alternating(np.random.default_rng(6), 40) * 0.1 + 90.0
    tight, loose = (difference(level(a), (90.1, 0.3, count), 1 - 2 * ALPHA) for count in (100, 3))
    assert loose.high - loose.low > tight.high - tight.low
    for bound, side in ((loose.low, "greater"), (loose.high, "less")):  # there, the p value is ALPHA
        shifted = (a.mean() - bound, a.std(ddof=1), 40, 90.1, 0.3, 3)
        p = stats.ttest_ind_from_stats(*shifted, equal_var=False, alternative=side).pvalue
        assert p == pytest.approx(ALPHA, rel=1e-6)


@pytest.mark.parametrize("phi", [0.3, 0.6, 0.9])
def test_the_effective_count_of_an_autoregression_is_the_closed_form(phi):
    n = 20_000
    found = effective_count(autoregressive(np.random.default_rng(8), n, phi))
    assert found == pytest.approx(n * (1 - phi) / (1 + phi), rel=0.15)


def test_a_diverged_run_has_no_mean():
    with pytest.raises(BadValue, match="finite"):
        bootstrap_mean([1.0, math.inf])


def test_a_difference_of_means_has_welch_s_interval():
    rng = np.random.default_rng(12)
    a, b = alternating(rng, 12) + 0.5, 3.0 * alternating(rng, 9)
    found = difference(level(a), level(b))
    known = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((known.low, known.high), rel=1e-9)
    assert math.isnan(difference(level([1.0]), level(b)).low)
    constant = difference(level([1.0] * 5), level([1.5] * 5))
    assert (constant.mean, constant.low, constant.high) == (-0.5, -0.5, -0.5)
