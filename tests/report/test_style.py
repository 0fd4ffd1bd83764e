"""Colours and numbers."""

import pytest

from raylfl.algorithms import ALGORITHMS
from raylfl.report.derived import Stat
from raylfl.report.runs import group_runs, load_run
from raylfl.report.style import DASHES, PALETTE, line_styles, method_styles
from raylfl.report.wording import cost_text, count_text, number, stat_text, target_text
from tests.report.synthetic import rows_of, write_run


def test_as_many_methods_as_there_are_colours_and_dashes_differ():
    names = ALGORITHMS.names()[: len(PALETTE) * len(DASHES)]
    assert len({(line.color, line.dash) for line in method_styles(names).values()}) == len(names) == 32


def test_a_method_keeps_its_colour_beside_any_others():
    alone, crowd = method_styles(["focus"]), method_styles(["mine", "sfl", "scaffold", "focus", "fedavg"])
    assert alone["focus"] == crowd["focus"]


def test_settings_of_a_method_share_its_colour_and_differ_in_dash(tmp_path):
    names = [("focus", 0.1), ("focus", 0.2), ("sfl", 0.1)]
    runs = [
        load_run(write_run(tmp_path / f"{i}", rows_of([0.1]), {"algorithm.name": name, "local.lr": lr}))
        for i, (name, lr) in enumerate(names)
    ]
    groups = group_runs(runs)
    one, two, other = line_styles(groups, method_styles(["focus", "sfl"])).values()
    assert one.color == two.color != other.color
    assert one.dash != two.dash
    single = line_styles(groups[:2], method_styles(["focus", "sfl"])).values()
    assert len({line.color for line in single}) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.1235"),
        (1.2e-12, "1.2e-12"),
        (12345.6, "12\u2009346"),
        (float("nan"), "–"),
        (3e8, "3e8"),
        (float("inf"), "∞"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(68, "68"), (68.46, "68.5"), (3549.2, "3549"), (12345, "12.3k"), (1.234e6, "1.23M"), (5e9, "5.00G")],
)
def test_counts_have_a_suffix(value, text):
    assert count_text(value) == text


def test_a_spread_is_written_like_its_mean():
    assert cost_text(Stat(9.75e6, 6.1e5, 3, 3)) == "9.75M ± 0.61M"
    assert cost_text(Stat(78.67, 4.93, 2, 3)) == "78.7 ± 4.9 (2 of 3)"
    assert cost_text(Stat.over([], of=3)) == "–"


def test_accuracies_are_in_per_cent_and_divergence_is_named():
    assert stat_text(Stat(0.78434, 0.0246, 3, 3), "test/accuracy") == "78.43 ± 2.46"
    assert stat_text(Stat.over([0.5]), "test/accuracy") == "50.00"
    assert stat_text(Stat.over([1.0, float("inf")]), "train/loss") == "diverged"
    assert target_text("test/accuracy", 0.7, True) == "test accuracy ≥ 70\u202f%"
    assert target_text("global/distance", 1e-6, False) == "relative distance to optimum ≤ 1e-6"
