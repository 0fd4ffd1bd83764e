"""Paired differences against scipy's t test, and the numbers of seeds that it needs against tables and simulations."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from raylfl.errors import BadValue
from raylfl.report.derived import facets
from raylfl.report.render import to_csv, to_markdown
from raylfl.report.runs import group_runs, load_run
from raylfl.report.statistics import _power, paired, paired_test, seeds_needed
from tests.report.synthetic import rows_of, write_run

RNG = np.random.default_rng(3)
WORLDS = 0.05 * RNG.normal(size=5)  # a seed's world moves all methods alike
TOPS = {"fedavg": 0.6, "focus": 0.7, "sfl": 0.69}
NOISE = {name: 0.002 * np.random.default_rng(k).normal(size=(5, 12)) for k, name in enumerate(TOPS)}
CURVES = {(m, s): top + WORLDS[s] + NOISE[m][s] for m, top in TOPS.items() for s in range(5)}


def table(tmp_path, curves, last=4, kind="accuracy", diverged=()):
    for (method, seed), values in curves.items():
        rows = rows_of(**{kind: list(values)})
        run = write_run(
            tmp_path / f"{method}_{seed}",
            rows,
            {"algorithm.name": method, "seed": seed},
            (method, seed) not in diverged,
        )
        if (method, seed) in diverged:
            (run / "diverged.txt").touch()
    runs = [load_run(path) for path in sorted(tmp_path.iterdir())]
    metric = "test/accuracy" if kind == "accuracy" else "global/distance"
    return paired(facets(group_runs(runs)), metric, last)


def test_the_interval_and_the_verdict_are_those_of_a_paired_t_test(tmp_path):
    found = table(tmp_path, CURVES)
    assert [row["pair"] for row in found.rows] == ["FOCUS − FedAvg", "FOCUS − SFL"]
    for row, other in zip(found.rows, ("fedavg", "sfl"), strict=True):
        ours, theirs = ([CURVES[m, s][-4:].mean() for s in range(5)] for m in ("focus", other))
        expected = stats.ttest_rel(ours, theirs)
        low, high = expected.confidence_interval()
        difference = row["difference"]
        assert (difference.mean, difference.low, difference.high) == pytest.approx(
            (np.mean(ours) - np.mean(theirs), low, high)
        )
        assert (row["ahead"] == "FOCUS") == (expected.pvalue < 0.05)
        apart = np.subtract(ours, theirs)
        assert row["needed"] == seeds_needed(apart.mean(), apart.std(ddof=1))


def test_only_seeds_and_rounds_in_common_are_paired(tmp_path):
    curves = {("fedavg", s): CURVES["fedavg", s] for s in (0, 1, 2)} | {
        ("focus", s): np.append(CURVES["focus", s], [0.0] if s == 1 else []) for s in (1, 2, 4)
    }
    (row,) = table(tmp_path, curves).rows
    assert row["seeds"] == "2"
    windows = [(CURVES["focus", 1][-3:], CURVES["fedavg", 1][-3:]), (CURVES["focus", 2][-4:], CURVES["fedavg", 2][-4:])]
    signs = 1 if row["pair"].startswith("FOCUS") else -1
    assert row["difference"].mean == pytest.approx(signs * np.mean([a.mean() - b.mean() for a, b in windows]))


def test_for_a_distance_the_smaller_one_is_ahead(tmp_path):
    found = table(tmp_path, {key: 1 - values for key, values in CURVES.items()}, kind="distance")
    row = found.rows[0]
    assert (row["pair"], row["ahead"]) == ("FOCUS − FedAvg", "FOCUS")
    assert row["difference"].high < 0


def test_a_run_that_ended_early_is_counted_as_missing(tmp_path):
    found = table(tmp_path, CURVES | {("sfl", 1): CURVES["sfl", 1][:5]})
    assert [row["seeds"] for row in found.rows] == ["5", "4 of 5"]


@pytest.mark.parametrize(
    ("values", "diverged"), [([0.5, math.inf, math.inf], []), ([0.9], [("sfl", 1)]), ([], [("sfl", 1)])]
)
def test_a_diverged_setting_is_behind_without_a_number(tmp_path, values, diverged):
    found = table(tmp_path, CURVES | {("sfl", 1): values}, diverged=diverged)
    row = found.rows[1]
    assert (row["pair"], row["difference"], row["ahead"]) == ("FOCUS − SFL", "diverged", "FOCUS")
    assert "diverged" in to_markdown(found)
    assert "difference_mean" in to_csv(found)


@pytest.mark.parametrize("seeds", [[0], []])
def test_without_two_seeds_in_common_there_is_no_table(tmp_path, seeds):
    curves = {("fedavg", s): CURVES["fedavg", s] for s in (0, 1)}
    curves |= {("focus", s): CURVES["focus", s] for s in [*seeds, 3, 4]}
    assert table(tmp_path, curves) is None


def test_one_setting_has_no_pairs(tmp_path):
    assert table(tmp_path, {key: values for key, values in CURVES.items() if key[0] == "sfl"}) is None


def test_equal_runs_differ_by_nothing_that_seeds_could_show():
    runs = [[1.0, 2.0], [3.0, 5.0]]
    found = paired_test(runs, runs)
    assert (found.difference.mean, found.difference.low, found.needed) == (0.0, 0.0, None)
    with pytest.raises(BadValue, match="two pairs"):
        paired_test(runs[:1], runs[:1])


@pytest.mark.parametrize(("effect", "seeds"), [(1.0, 10), (0.5, 34), (0.2, 199), (2.0, 5)])
def test_seeds_needed_are_those_of_the_usual_tables(effect, seeds):
    """Paired t test, alpha 0.05 two-sided, power 0.8: Cohen 1988, G*Power."""
    assert seeds_needed(effect, 1.0) == seeds
    assert seeds_needed(-10 * effect, 10.0) == seeds
    assert seeds_needed(0.0, 1.0) is seeds_needed(1e-6, 1.0) is None


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
