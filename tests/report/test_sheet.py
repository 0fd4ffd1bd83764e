"""Inline SVG: themed, with unique ids, without anything to fetch."""

import re

from matplotlib.figure import Figure

from raylfl.report.sheet import inline_svg, legend_key
from raylfl.report.style import DASHES, MARKERS, PALETTE, Line, rc


def drawing():
    with rc():
        figure = Figure()
        ax = figure.subplots()
        for index in range(len(PALETTE)):
            ax.plot([0, 1], [0, index], **Line(index, 0, index).options())
        ax.set_xlabel("x")
    return figure


def test_every_colour_of_the_palette_follows_the_theme():
    with rc():
        svg = inline_svg(drawing(), "f1", "t")
    for index, color in enumerate(PALETTE):
        assert color not in svg.lower()
        assert f"var(--s{index})" in svg
    assert "var(--ink)" in svg
    assert "var(--muted)" in svg


def test_ids_carry_the_prefix_and_every_reference_has_its_target():
    with rc():
        svg = inline_svg(drawing(), "f1", "t")
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    assert ids
    assert all(name.startswith("f1-") for name in ids)
    references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
    assert references
    assert all((a or b) in ids for a, b in references)


def test_nothing_of_the_outside_is_left():
    svg = inline_svg(drawing(), "f1", 'a "quoted" <title>')
    assert svg.startswith('<svg role="img" aria-label="a &quot;quoted&quot; &lt;title&gt;"')
    assert "http" not in svg
    assert "<metadata" not in svg
    assert not re.search(r'<svg[^>]*\s(width|height)="', svg)
    assert "viewBox=" in svg


def test_every_line_style_has_a_legend_key():
    keys = {legend_key(Line(0, dash, marker), "k") for dash in range(len(DASHES)) for marker in range(len(MARKERS))}
    assert len(keys) == len(DASHES) * len(MARKERS)
