"""Heat-maps and profiles: the numbers that are drawn."""

import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from raylfl.report.curves import draw_heat_map, draw_profile, heat_values
from raylfl.report.derived import Stat, facets
from raylfl.report.runs import group_runs, load_run
from raylfl.report.style import method_styles
from tests.report.synthetic import rows_of, write_run


def parts_of(folder, table):
    """table: (alpha, method, lr) -> final accuracy."""
    runs = []
    for index, ((alpha, method, lr), value) in enumerate(table.items()):
        changes = {"partition.alpha": alpha, "algorithm.name": method, "local.lr": lr}
        runs.append(load_run(write_run(folder / str(index), rows_of([0.1, value]), changes)))
    return facets(group_runs(runs))


TABLE = {
    (0.1, "fedavg", 0.1): 0.4,
    (0.1, "fedavg", 0.01): 0.3,
    (0.1, "sfl", 0.1): 0.6,
    (0.5, "fedavg", 0.1): 0.7,
    (0.5, "fedavg", 0.01): 0.8,
    (1.0, "sfl", 0.1): math.nan,
    (1.0, "fedavg", 0.1): 0.9,
}


def test_a_cell_is_the_best_tuning_of_a_method_in_a_scenario(tmp_path):
    scenarios, methods, values = heat_values(parts_of(tmp_path, TABLE), "test/accuracy", 1)
    assert scenarios == ["alpha=0.1", "alpha=0.5", "alpha=1"]
    assert methods == ["fedavg", "sfl"]
    np.testing.assert_array_equal(values, [[0.4, 0.6], [0.8, math.nan], [0.9, math.inf]])


def test_the_map_shows_every_number_and_the_best_of_a_row_in_bold(tmp_path):
    ax = Figure().subplots()
    draw_heat_map(ax, parts_of(tmp_path, TABLE), "test/accuracy", 1)
    ax.figure.draw_without_rendering()
    shown = {text.get_text(): text.get_fontweight() for text in ax.texts}
    assert shown == {"40.0": "normal", "60.0": "bold", "80.0": "normal", "90.0": "normal", "div.": "normal"}


@pytest.mark.parametrize(
    ("metric", "best"),
    [("train/loss", {"1", "2"}), ("test/f1", {"3", "4"}), ("clients/accuracy_std", {"100.0", "200.0"})],
)
def test_the_best_of_a_row_is_bold_whichever_direction_the_metric_has(tmp_path, metric, best):
    runs = []
    for index, (method, alpha) in enumerate([(m, a) for m in ("fedavg", "sfl") for a in (0.1, 0.5)]):
        rows = [{"round": 0, metric: float(index + 1)}]
        changes = {"algorithm.name": method, "partition.alpha": alpha, "metrics": {"test/f1": "max"}}
        runs.append(load_run(write_run(tmp_path / str(index), rows, changes)))
    ax = Figure().subplots()
    draw_heat_map(ax, facets(group_runs(runs)), metric, 1)
    assert {text.get_text() for text in ax.texts if text.get_fontweight() == "bold"} == best


def test_a_profile_marks_the_best_value_of_each_method_and_leaves_out_diverged_runs():
    points = {"fedavg": [(0.01, Stat(0.3, 0.1, 2, 2)), (0.1, Stat(0.5, 0.1, 2, 2)), (1.0, Stat.over([math.inf]))]}
    ax = Figure().subplots()
    draw_profile(ax, points, method_styles(["fedavg"]), "test/accuracy", "local.lr", higher=True)
    curve, ring = (line for line in ax.get_lines() if len(line.get_xdata()) and line.get_marker() not in "_|")
    assert curve.get_ydata().tolist() == [30, 50]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (0.1, 50)
    assert ax.get_xscale() == "log"


@pytest.mark.parametrize(("metric", "best", "scale"), [("train/loss", 1.0, "log"), ("test/f1", 2.0, "linear")])
def test_a_profile_rings_the_best_value_in_the_direction_of_the_metric(metric, best, scale):
    points = {"fedavg": [(1.0, Stat(0.3, 0.1, 2, 2)), (2.0, Stat(0.5, 0.1, 2, 2))]}
    ax = Figure().subplots()
    draw_profile(ax, points, method_styles(["fedavg"]), metric, "local.steps", higher=metric == "test/f1")
    rings = [line for line in ax.get_lines() if line.get_markersize() == 10]
    assert [line.get_xdata()[0] for line in rings] == [best]
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", scale)
