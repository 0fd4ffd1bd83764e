"""Figures as inline SVG in the colours of the page's theme, light or dark."""

from __future__ import annotations

import io
import re
from html import escape

from matplotlib.figure import Figure

from raylfl.report.style import DASHES, GRID, INK, MUTED, PALETTE, PAPER, Line

_THEMED = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"} | {
    color: f"--s{index}" for index, color in enumerate(PALETTE)
}
_DROPPED = (r"<\?xml.*?\?>", r"<!DOCTYPE.*?>", r"<metadata>.*?</metadata>", r'\sxmlns(:\w+)?="[^"]*"')
_SHAPES = (  # the markers of style.MARKERS around (17, 6)
    '<circle cx="17" cy="6" r="3"/>',
    '<rect x="14.2" y="3.2" width="5.6" height="5.6"/>',
    '<path d="M17 2.4 20.4 9H13.6z"/>',
    '<path d="M17 2 20.6 6 17 10 13.4 6z"/>',
    '<path d="M17 9.6 13.6 3H20.4z"/>',
    '<path d="M15.8 2.4h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4V7.2h-2.4V4.8h2.4z"/>',
    '<path d="M14.6 2 17 4.4 19.4 2 21 3.6 18.6 6 21 8.4 19.4 10 17 7.6 14.6 10 13 8.4 15.4 6 13 3.6z"/>',
    '<path d="M13.4 6 20 2.4V9.6z"/>',
)


def inline_svg(figure: Figure, prefix: str, title: str) -> str:
    """The figure as an <svg> element that fills the width of its container, without size, namespace or metadata.

    prefix: a prefix for ids, unique within the page. title: a description for screen readers. The colours of
    `raylfl.report.style` become CSS variables (--ink, --muted, --grid, --s0, ...); the page defines them for its light
    and its dark theme.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    for pattern in _DROPPED:
        svg = re.sub(pattern, "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'\bxlink:href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    for color, name in _THEMED.items():
        svg = re.sub(color, f"var({name})", svg, flags=re.IGNORECASE)
    head = f'<svg role="img" aria-label="{escape(title)}"'
    for size in ("width", "height"):
        svg = re.sub(rf'<svg\b([^>]*?)\s{size}="[^"]*"', r"<svg\1", svg, count=1)
    return svg.replace("<svg", head, 1).strip()


def legend_key(line: Line) -> str:
    """The line's colour, dash and marker as a small <svg> element, for a legend in HTML."""
    dash = " ".join(f"{1.6 * part:g}" for part in DASHES[line.dash])
    stroke = f' stroke-dasharray="{dash}"' if dash else ""
    shape = "" if line.thin else f'<g fill="var(--c)">{_SHAPES[line.marker]}</g>'
    return (
        f'<svg class="key" viewBox="0 0 34 12" style="--c:var(--s{line.color})" aria-hidden="true">'
        f'<path d="M1 6H33" stroke="var(--c)" stroke-width="{1 if line.thin else 2}"{stroke}/>{shape}</svg>'
    )
