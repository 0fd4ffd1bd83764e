"""The counts of the participation figure, which is drawn without pyplot."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from raylfl.heterogeneity.trace import make_row
from raylfl.report.participation_plot import (
    IDLE,
    LOST,
    RECEIVED,
    frequencies,
    gaps,
    memoryless,
    participation_figure,
    states,
)
from tests.shares import one_in

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


def test_states_distinguish_idle_lost_and_received():
    expected = [[RECEIVED, IDLE, IDLE, RECEIVED], [IDLE] * 4, [LOST, IDLE, RECEIVED, RECEIVED]]
    assert states(ROWS, 3).tolist() == expected


def test_frequencies_count_draws():
    assert frequencies(ROWS, 3).tolist() == [0.5, 0.0, 1.25]


def test_gaps_are_rounds_from_one_participation_to_the_next_lost_or_not():
    lengths, clients = gaps(states(ROWS, 3))
    assert list(zip(clients.tolist(), lengths.tolist(), strict=True)) == [(0, 3), (2, 2), (2, 1)]


def test_memoryless_gaps_of_equal_clients_are_geometric():
    table = states(random_rows(1, 400, 0.3), 1)
    f, g = (table != IDLE).mean(), np.arange(1, 20)
    np.testing.assert_allclose(memoryless(table, gaps(table)[1], g), stats.geom(f).pmf(g), rtol=1e-12)


def test_memoryless_gaps_are_shares():
    table = states(random_rows(20, 300, np.linspace(0.05, 0.9, 20)), 20)
    assert memoryless(table, gaps(table)[1], np.arange(1, 2000)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("known", "rounds", "count"), one_in(4, list(product([True, False], [1, 60, 1500], [1, 32, 700])))
)
def test_any_run_can_be_drawn(count, rounds, known, tmp_path):
    nominal = np.full(count, 0.1) if known else None
    figure = participation_figure(random_rows(count, rounds, 0.1), count, nominal, "Bernoulli")
    raster, frequency, spells = figure.axes
    assert raster.get_title(loc="left").startswith("Sampled: ")
    assert raster.get_images()[0].get_array().shape == (count, rounds, 3)
    dots = frequency.collections[-1].get_offsets()
    np.testing.assert_allclose(dots[:, 1], frequencies(random_rows(count, rounds, 0.1), count))
    assert (frequency.get_legend() is not None) == known
    assert spells.get_xlabel() == "rounds from one to the next"
    if rounds == 60:
        figure.savefig(tmp_path / "participation.png")
        assert (tmp_path / "participation.png").stat().st_size > 10_000


def test_a_run_without_participants_can_be_drawn(tmp_path):
    figure = participation_figure([ROWS[1]], 3)
    figure.savefig(tmp_path / "empty.png")
    assert figure.axes[2].texts[0].get_text() == "no client took part twice"
