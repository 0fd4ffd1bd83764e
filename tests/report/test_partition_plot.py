"""Pictures of partitions and participation show the counts and state what they leave out."""

from itertools import product

import numpy as np
import pytest
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from raylfl.heterogeneity.trace import make_row
from raylfl.report.participation_plot import IDLE, LOST, RECEIVED, frequencies, participation_figure, states
from raylfl.report.partition_plot import MAX_COLUMNS, bubble, class_colors, columns, figure, heat, stacked
from tests.shares import also, one_in


def random_counts(clients, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 400, (clients, classes)) * (rng.random((clients, classes)) < 0.5)


def axes():
    return Figure(figsize=(6, 4)).subplots()


def bubbles(ax):
    return [item for item in ax.collections if isinstance(item, EllipseCollection)]


def test_bubble_areas_are_proportional_to_counts():
    counts = random_counts(10, 6)
    ax = axes()
    bubble(ax, counts)
    data, key = bubbles(ax)
    i, c = data.get_offsets().T.astype(int)
    assert len(i) == np.count_nonzero(counts)
    per_sample = data.get_widths() ** 2 / counts[i, c]
    np.testing.assert_allclose(per_sample, per_sample[0], rtol=1e-12)
    assert data.get_widths().max() <= 0.94  # of a cell
    largest, smallest = key.get_widths()
    assert largest**2 == pytest.approx(200 * per_sample[0])  # round numbers below the largest count
    assert smallest**2 == pytest.approx(20 * per_sample[0])


def test_bubbles_of_a_class_have_its_colour_in_both_panels():
    counts = random_counts(4, 3)
    drawn = figure(counts)
    above, below = drawn.axes[:2]
    c = bubbles(above)[0].get_offsets()[:, 1].astype(int)
    np.testing.assert_allclose(bubbles(above)[0].get_facecolors(), class_colors(3)[c])
    shown = np.vstack([item.get_facecolor() for item in below.patches])
    np.testing.assert_allclose(shown, class_colors(3))


def test_ten_classes_have_ten_colours_and_a_hundred_a_hundred():
    for count in (1, 10, 11, 100):
        assert len(np.unique(class_colors(count), axis=0)) == count


@pytest.mark.parametrize("clients", [7, 100])
def test_bars_stack_up_to_the_clients_sizes(clients):
    counts = random_counts(clients, 5)
    ax = axes()
    stacked(ax, counts)
    order = columns(counts)
    tops = np.cumsum(counts[order], axis=1)
    for c, bars in enumerate(ax.patches):
        for place, top in enumerate(tops[:, c]):
            covered = [bars.get_path().contains_point((place, top + off)) for off in (-0.5, 0.5)]
            assert covered == [counts[order[place], c] > 0, False]
    assert ax.get_ylim()[1] > counts.sum(axis=1).max()


def test_many_clients_become_a_heat_map_sorted_by_their_main_class():
    counts = random_counts(100, 10)
    ax = axes()
    bubble(ax, counts)
    assert not bubbles(ax)
    shown = ax.images[0].get_array()
    np.testing.assert_array_equal(np.sort(shown.sum(axis=0)), np.sort(counts.sum(axis=1)))  # all are there
    assert np.all(np.diff(shown.argmax(axis=0)) >= 0)
    assert ax.get_xlabel() == "100 clients, sorted by most frequent class"


def test_clients_that_do_not_fit_are_left_out_with_a_note():
    counts = random_counts(5 * MAX_COLUMNS, 4)
    ax = axes()
    heat(ax, counts)
    assert ax.images[0].get_array().shape == (4, MAX_COLUMNS)
    assert ax.get_xlabel() == "every 5. of 3,000 clients, sorted by most frequent class"


def test_class_names_label_the_rows():
    ax = axes()
    bubble(ax, random_counts(5, 3), ["cat", "dog", "fox"])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["cat", "dog", "fox"]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (32, 10), (700, 3), *map(also, (2, 100, 20), (2, 10, 100))])
def test_every_size_is_drawn_to_a_file(clients, classes, tmp_path):
    figure(random_counts(clients, classes), title="partition").savefig(tmp_path / "p.png", dpi=50)
    assert (tmp_path / "p.png").stat().st_size > 2000


def test_pictures_of_nothing_are_drawn_too(tmp_path):
    figure(np.zeros((4, 3), dtype=np.int64)).savefig(tmp_path / "p.png", dpi=50)
    participation_figure([ROWS[1]], 3).savefig(tmp_path / "empty.png")


ROWS = [
    {"round": 0, "cohort": [0, 2], "draws": [1, 3], "received": [True, False], "steps": [1, 1]},
    {"round": 1, "cohort": [], "draws": [], "received": [], "steps": []},
    {"round": 2, "cohort": [2], "draws": [1], "received": [True], "steps": [1]},
    {"round": 3, "cohort": [2, 0], "draws": [1, 1], "received": [True, True], "steps": [1, 1]},
]


def random_rows(count, rounds, p, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for r in range(rounds):
        cohort = np.flatnonzero(rng.random(count) < p)
        once = np.ones_like(cohort)
        rows.append(make_row(r, cohort, once, cohort % 3 > 0, once))
    return rows


def test_states_and_frequencies_of_participation():
    expected = [[RECEIVED, IDLE, IDLE, RECEIVED], [IDLE] * 4, [LOST, IDLE, RECEIVED, RECEIVED]]
    assert states(ROWS, 3).tolist() == expected
    assert frequencies(ROWS, 3).tolist() == [0.5, 0.0, 1.25]


@pytest.mark.parametrize(
    ("known", "rounds", "count"), one_in(4, list(product([True, False], [1, 60, 1500], [1, 32, 700])))
)
def test_any_run_can_be_drawn(count, rounds, known, tmp_path):
    nominal = np.full(count, 0.1) if known else None
    figure = participation_figure(random_rows(count, rounds, 0.1), count, nominal, "Bernoulli")
    raster, frequency = figure.axes
    assert raster.get_title(loc="left").startswith("Sampled: ")
    assert raster.get_images()[0].get_array().shape == (count, rounds, 3)
    dots = frequency.collections[-1].get_offsets()
    np.testing.assert_allclose(dots[:, 1], frequencies(random_rows(count, rounds, 0.1), count))
    assert (frequency.get_legend() is not None) == known
    if rounds == 60:
        figure.savefig(tmp_path / "participation.png")
        assert (tmp_path / "participation.png").stat().st_size > 10_000
