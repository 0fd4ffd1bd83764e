"""Colours and numbers; inline SVG: themed, with unique ids, without anything to fetch."""

import re

from matplotlib.figure import Figure

from raylfl.algorithms import ALGORITHMS
from raylfl.report.derived import Stat
from raylfl.report.sheet import inline_svg
from raylfl.report.style import DASHES, PALETTE, LineStyle, line_styles, method_styles, rc
from raylfl.report.wording import cost_text, count_text, number, stat_text, target_text
from tests.report.synthetic import groups_of, rows_of


def test_methods_differ_in_colour_or_dash_and_keep_their_colour_beside_any_others():
    names = ALGORITHMS.names()[: len(PALETTE) * len(DASHES)]
    assert len({(line.color, line.dash) for line in method_styles(names).values()}) == len(names) == 32
    alone, crowd = method_styles(["focus"]), method_styles(["mine", "sfl", "scaffold", "focus", "fedavg"])
    assert alone["focus"] == crowd["focus"]


def test_settings_of_a_method_share_its_colour_and_differ_in_dash(tmp_path):
    names = [("focus", 0.1), ("focus", 0.2), ("sfl", 0.1)]
    groups = groups_of(tmp_path, *((rows_of([0.1]), {"algorithm.name": name, "local.lr": lr}) for name, lr in names))
    one, two, other = line_styles(groups, method_styles(["focus", "sfl"])).values()
    assert one.color == two.color != other.color
    assert one.dash != two.dash
    single = line_styles(groups[:2], method_styles(["focus", "sfl"])).values()
    assert len({line.color for line in single}) == 2


def test_numbers_are_short_and_counts_have_a_suffix():
    numbers = [0.12345, 1.2e-12, 12345.6, float("nan"), 3e8, float("inf")]
    assert [number(value) for value in numbers] == ["0.1235", "1.2e-12", "12\u2009346", "–", "3e8", "∞"]
    counts = [68, 68.46, 3549.2, 12345, 1.234e6, 5e9]
    assert [count_text(value) for value in counts] == ["68", "68.5", "3549", "12.3k", "1.23M", "5.00G"]


def test_spreads_are_written_like_their_means_accuracies_in_per_cent_and_divergence_by_name():
    assert cost_text(Stat(9.75e6, 6.1e5, 3, 3)) == "9.75M ± 0.61M"
    assert cost_text(Stat(78.67, 4.93, 2, 3)) == "78.7 ± 4.9 (2 of 3)"
    assert cost_text(Stat.over([], of=3)) == "–"
    assert stat_text(Stat(0.78434, 0.0246, 3, 3), "test/accuracy") == "78.43 ± 2.46"
    assert stat_text(Stat.over([0.5]), "test/accuracy") == "50.00"
    assert stat_text(Stat.over([1.0, float("inf")]), "train/loss") == "diverged"
    assert target_text("test/accuracy", 0.7, True) == "test accuracy ≥ 70\u202f%"
    assert target_text("global/distance", 1e-6, False) == "relative distance to optimum ≤ 1e-6"


def drawing():
    with rc():
        figure = Figure()
        ax = figure.subplots()
        for index in range(len(PALETTE)):
            ax.plot([0, 1], [0, index], **LineStyle(index, 0, index).options())
        ax.set_xlabel("x")
    return figure


def test_an_inline_figure_follows_the_theme_and_has_its_own_ids_and_nothing_of_the_outside():
    with rc():
        svg = inline_svg(drawing(), "f1", 'a "quoted" <title>')
    for index, color in enumerate(PALETTE):
        assert color not in svg.lower()
        assert f"var(--s{index})" in svg
    assert "var(--ink)" in svg
    assert "var(--muted)" in svg
    ids, references = re.findall(r'\bid="([^"]+)"', svg), re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
    assert ids
    assert references
    assert all(name.startswith("f1-") for name in ids)
    assert all((a or b) in ids for a, b in references)
    assert svg.startswith('<svg role="img" aria-label="a &quot;quoted&quot; &lt;title&gt;"')
    assert "http" not in svg
    assert "<metadata" not in svg
    assert not re.search(r'<svg[^>]*\s(width|height)="', svg)
    assert "viewBox=" in svg
