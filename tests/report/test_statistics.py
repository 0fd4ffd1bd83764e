"""Numbers of seeds that a paired t test needs, against tables, quadrature and simulations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from raylfl.report.statistics import _power, seeds_needed


@pytest.mark.parametrize(("effect", "seeds"), [(1.0, 10), (0.5, 34), (0.2, 199), (2.0, 5)])
def test_seeds_needed_are_those_of_the_usual_tables(effect, seeds):
    """Paired t test, alpha 0.05 two-sided, power 0.8: Cohen 1988, G*Power."""
    assert seeds_needed(effect, 1.0) == seeds
    assert seeds_needed(-10 * effect, 10.0) == seeds


@pytest.mark.parametrize("seeds", [2, 3, 5, 30, 2000])
def test_the_power_is_an_integral_over_the_spread_that_a_sample_shows(seeds):
    """P(|Z + d| > b S), S = chi/sqrt(dof), by adaptive quadrature, and scipy's noncentral t where it is finite."""
    dof, bound = seeds - 1, stats.t.ppf(0.975, seeds - 1)
    for effect in (0.01, 0.1, 0.5, 1.0, 2.0, 6.0, 8.0, 20.0):
        shift, spread = effect * np.sqrt(seeds), stats.chi(dof, scale=1 / np.sqrt(dof))

        def outside(s, shift=shift, spread=spread):
            return (stats.norm.cdf(shift - bound * s) + stats.norm.cdf(-shift - bound * s)) * spread.pdf(s)

        ends = np.unique(np.clip([*spread.ppf([1e-14, 0.01, 0.5, 0.99, 1 - 1e-14]), shift / bound], 0, 40))
        power = sum(integrate.quad(outside, a, b)[0] for a, b in pairwise(ends))
        assert _power(effect, seeds) == pytest.approx(power, abs=1e-5)
        central = stats.nct.sf(bound, dof, shift) + stats.nct.cdf(-bound, dof, shift)
        assert np.isnan(central) or _power(effect, seeds) == pytest.approx(central, abs=1e-5)


@pytest.mark.parametrize(("effect", "seeds"), [(6.0, 3), (8.0, 3), (10.0, 3), (13.0, 2)])
def test_large_effects_need_as_many_seeds_as_their_power_says(effect, seeds):
    """scipy's power of two seeds is nan for some of them. T with one degree of freedom: 0.494, 0.625, ..."""
    rng = np.random.default_rng(0)
    draws = effect + rng.standard_normal((200_000, 2))
    significant = stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05
    assert (significant.mean() >= 0.8) == (seeds == 2)
    assert seeds_needed(effect, 1.0) == seeds


def test_seeds_needed_have_the_power_in_a_simulation():
    n, rng = seeds_needed(0.7, 1.0), np.random.default_rng(7)
    found = stats.ttest_1samp(rng.normal(0.7, 1.0, (4000, n)), 0.0, axis=1).pvalue < 0.05
    assert 0.78 < found.mean() < 0.86


def test_no_number_of_seeds_shows_a_difference_of_nothing():
    assert seeds_needed(0.0, 1.0) is seeds_needed(1e-6, 1.0) is None
