"""Curves of pooled seeds: numbers and scales."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from raylfl.report.curves import curve, default_window, draw, log_axis, wants_log
from raylfl.report.style import LineStyle
from tests.report.synthetic import groups_of, rows_of, seeds_of


def test_a_curve_is_the_mean_of_the_seeds_and_the_band_holds_them_all_or_their_standard_deviation(tmp_path):
    data = np.random.default_rng(0).random((3, 20))
    group = seeds_of(tmp_path, data)
    item = curve(group, "test/accuracy")
    np.testing.assert_allclose(item.mean, data.mean(axis=0))
    np.testing.assert_allclose(item.low, data.min(axis=0))
    np.testing.assert_allclose(item.high, data.max(axis=0))
    assert item.x.tolist() == list(range(1, 21))
    item = curve(group, "test/accuracy", band="std")
    np.testing.assert_allclose(item.high - item.mean, data.std(axis=0, ddof=1))
    np.testing.assert_allclose(item.mean - item.low, data.std(axis=0, ddof=1))


def test_the_other_axes_are_the_costs_of_the_rounds(tmp_path):
    group = seeds_of(tmp_path, [[0.1, 0.2, 0.3]])
    assert curve(group, "test/accuracy", "floats").x.tolist() == [2000, 4000, 6000]
    assert curve(group, "test/accuracy", "steps").x.tolist() == [20, 40, 60]
    assert curve(group, "test/accuracy", "virtual").x.tolist() == [0.5, 1.0, 1.5]
    assert curve(group, "test/accuracy", "computation") is None
    assert curve(group, "never") is None


def test_a_seed_that_stopped_early_counts_with_its_newest_values(tmp_path):
    item = curve(seeds_of(tmp_path, [[0.2, 0.4, 0.6], [0.4]]), "test/accuracy")
    np.testing.assert_allclose(item.mean, [0.3, 0.4, 0.6])


def test_the_mean_ends_where_a_seed_diverges(tmp_path):
    """The mean of the seeds that are left would leap from 0.3 to 0.9."""
    inf = float("inf")
    item = curve(seeds_of(tmp_path, [[0.2, 0.2, inf], [0.4, 0.4, 0.9, 0.9]]), "test/accuracy")
    np.testing.assert_allclose(item.mean, [0.3, 0.3])
    assert item.diverged
    assert not curve(seeds_of(tmp_path / "b", [[0.2, inf, 0.2], [0.4, 0.4, 0.4]]), "test/accuracy").diverged
    assert curve(seeds_of(tmp_path / "c", [[inf], [0.4, 0.4]]), "test/accuracy") is None
    ax = Figure().subplots()
    draw(ax, [(item, LineStyle())], "test/accuracy")
    (cross,) = [line for line in ax.lines if line.get_marker() == "x"]
    np.testing.assert_allclose(cross.get_xydata(), [[2, 30]])
    assert "diverges" in ax.texts[0].get_text()


def test_a_curve_holds_all_rounds_before_a_run_diverged(tmp_path):
    group = seeds_of(tmp_path, [[0.2, 0.2], [0.4, 0.4, 0.9]])
    group.runs[0].diverged = True
    item = curve(group, "test/accuracy")
    np.testing.assert_allclose(item.mean, [0.3, 0.3])
    assert item.diverged


def test_rounds_that_measured_nothing_finite_are_no_points(tmp_path):
    rows = [{"round": r, "a": value} for r, value in enumerate([1.0, float("nan"), 3.0, float("inf")])]
    (group,) = groups_of(tmp_path, (rows, {}))
    item = curve(group, "a")
    assert item.x.tolist() == [1, 3]
    assert item.mean.tolist() == [1, 3]


def test_each_seed_is_smoothed_before_the_band_is_taken(tmp_path):
    item = curve(seeds_of(tmp_path, [[0.0, 1.0, 0.0, 1.0]]), "test/accuracy", window=2)
    np.testing.assert_allclose(item.mean, [0.0, 0.5, 0.5, 0.5])


def test_only_long_noisy_curves_are_smoothed_by_default(tmp_path):
    long = seeds_of(tmp_path / "a", [np.linspace(0.1, 0.9, 500).tolist()])
    assert default_window([long], "test/accuracy") == 10
    rows, stated = [{"round": r, "test/f1": 0.5} for r in range(500)], {"metrics": {"f1": "max"}}
    (scored,) = groups_of(tmp_path / "d", (rows, stated))
    assert default_window([scored], "test/f1") == 10
    far = seeds_of(tmp_path / "b", [np.linspace(0.9, 0.1, 500).tolist()], "distance")
    assert default_window([far], "global/distance") == 1
    assert default_window([seeds_of(tmp_path / "c", [[0.1] * 100])], "test/accuracy") == 1


@pytest.mark.parametrize(
    ("metric", "values", "log"),
    [
        ("train/loss", [2.0, 1.0], True),
        ("global/distance", [1.0, 0.0], True),
        ("global/loss", [1.0, -1.0], False),
        ("test/accuracy", [0.1, 0.9], False),
    ],
)
def test_losses_and_distances_are_drawn_by_log_unless_negative(tmp_path, metric, values, log):
    (group,) = groups_of(tmp_path, ([{"round": r, metric: value} for r, value in enumerate(values)], {}))
    item = curve(group, metric)
    assert wants_log(metric, [item]) is log
    ax = Figure().subplots()
    draw(ax, [(item, LineStyle())], metric)
    assert ax.get_yscale() == ("log" if log else "linear")


def test_accuracies_are_drawn_in_per_cent_with_the_target(tmp_path):
    ax = Figure().subplots()
    draw(ax, [(curve(seeds_of(tmp_path, [[0.25, 0.5]]), "test/accuracy"), LineStyle())], "test/accuracy", target=0.4)
    drawn, target = ax.get_lines()
    assert drawn.get_ydata().tolist() == [25, 50]
    assert target.get_ydata()[0] == 40


def test_a_diverging_curve_leaves_the_frame_and_the_others_stay(tmp_path):
    good = curve(seeds_of(tmp_path / "a", [[1.0, 1e-3, 1e-6]], "distance"), "global/distance")
    bad = curve(seeds_of(tmp_path / "b", [[1.0, 1e30, 1e200]], "distance"), "global/distance")
    ax = Figure().subplots()
    draw(ax, [(good, LineStyle()), (bad, LineStyle(1))], "global/distance")
    low, high = ax.get_ylim()
    assert high == 100
    assert 0 < low < 1e-6


def test_costs_far_apart_are_drawn_by_log_and_rounds_never(tmp_path):
    cheap, dear = rows_of([0.1, 0.2]), rows_of([0.1] * 20)
    groups = groups_of(tmp_path, (cheap, {}), (dear, {"local.lr": 0.5}))
    for axis, scale in (("floats", "log"), ("rounds", "linear")):
        ax = Figure().subplots()
        draw(ax, [(curve(g, "test/accuracy", axis), LineStyle()) for g in groups], "test/accuracy", axis)
        assert ax.get_xscale() == scale


@pytest.mark.parametrize(
    ("low", "high"), [(0.2, 0.9), (0.99994, 1.0), (5440.2, 5441.3), (1e-9, 1.00001e-9), (2.0, 30.0)]
)
def test_a_tick_is_told_from_the_next(low, high):
    ax = Figure().subplots()
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    log_axis(ax.yaxis, low, high)
    labels = [label.get_text() for label in ax.yaxis.get_ticklabels()]
    assert len(labels) > 2
    assert len(set(labels)) == len(labels)
