"""The overview figure of a report: the main metric, a loss, the data partition and a small table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from raylfl.report.facets import Facet
from raylfl.report.figures import Look, convergence, costs, legend_columns, legend_handles
from raylfl.report.style import GRID, INK, MUTED, Drawing
from raylfl.report.tables import Column, ReportTable, rank

WIDTH = 10.5  # inches
MAX_ROWS = 10
MAX_TEXT = 28  # characters of a cell; a longer text is cut
GAP = 3.2  # characters between two columns


def overview(
    part: Facet, look: Look, table: ReportTable, title: str, partition: Callable[[Axes], None] | None
) -> Figure | None:
    """The overview figure of one scenario; None without measurements.

    Its panels: the first two metrics of `figures.leading`, the partition if it is known (or else the main metric over
    the first cost), and the rows of the summary table.
    """
    curves, spent = convergence(part, look, most=2), costs(part, look)
    draws = [panel.draw for panel in curves.panels]
    below = partition or (spent.panels[0].draw if spent else None)
    draws += [below] if below else []
    if not draws:
        return None
    figure = Drawing(figsize=(WIDTH, 7.6), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, hspace=0.04))
    axes = figure.subplots(2, 2).ravel()
    for draw, ax in zip(draws, axes, strict=False):
        draw(ax)
    for ax in axes[len(draws) : 3]:
        ax.remove()
    draw_table(axes[3], table, [row for row in table.rows if row.get("block", "") == part.label])
    heading = f"{title}: {part.label}" if part.label else title
    figure.legend(
        handles=legend_handles(curves.legend),
        loc="outside upper left",
        ncols=legend_columns(curves.legend, WIDTH),
        title=heading,
        title_fontproperties={"size": 12, "weight": "bold"},
        alignment="left",
    )
    return figure


def draw_table(ax: Axes, table: ReportTable, rows: Sequence[dict[str, Any]]) -> None:
    """Draws the best MAX_ROWS of these rows of the summary table, best values in bold."""
    columns = [column for column in table.columns if column.key in {"setting", "last", "best", "rounds", "floats"}]
    shown = _top(rows, columns)
    heads = [column.head.replace(", last", "\nlast").replace(" to target", "\nto target") for column in columns]
    texts = [[column.show(row[column.key]) for row in shown] for column in columns]
    texts = [[text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…" for text in column] for column in texts]
    widths = [max(map(len, (*head.split("\n"), *own))) + GAP for head, own in zip(heads, texts, strict=True)]
    size = min(8.5, 560 / sum(widths))  # font size in points that fills the panel's width
    ax.axis("off")
    ax.set(xlim=(0, sum(widths) - GAP), ylim=(MAX_ROWS + 2.4, -0.2))
    left = 0.0
    for column, head, own, width in zip(columns, heads, texts, widths, strict=True):
        align = "right" if column.numeric else "left"
        x = left + (width - GAP if column.numeric else 0)
        ax.text(x, 1.15, head, ha=align, va="bottom", fontsize=size, fontweight="bold", linespacing=1.3)
        best = table.best_in(rows, column)
        for line, (row, text) in enumerate(zip(shown, own, strict=True)):
            top = best is not None and rank(row[column.key]) == best
            weight = "bold" if top else "normal"
            ax.text(x, 1.95 + line, text, ha=align, va="center", fontsize=size, fontweight=weight)
        left += width
    ax.hlines([1.3, len(shown) + 1.6], 0, sum(widths) - GAP, color=INK, linewidth=0.8)
    ax.hlines(np.arange(1, len(shown)) + 1.45, 0, sum(widths) - GAP, color=GRID, linewidth=0.6)
    note = textwrap.fill(table.caption, 74)
    ax.text(0, len(shown) + 1.9, note, fontsize=7.5, color=MUTED, va="top", linespacing=1.35)
    for drawn in ax.texts:
        drawn.set_in_layout(False)  # otherwise a wide table would narrow the curves above


def _top(rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> list[dict[str, Any]]:
    sign = next(-1 if column.better == "max" else 1 for column in columns if column.key == "last")
    ranked = sorted(rows, key=lambda row: (not math.isfinite(rank(row["last"])), sign * rank(row["last"])))
    chosen = [id(row) for row in ranked[:MAX_ROWS]]
    return [row for row in rows if id(row) in chosen]
