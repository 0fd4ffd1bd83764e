"""Figures of our accuracy curves and the authors' in SFL's tables: one panel per cell, from the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from papers.draw import label_beside_logs
from papers.ledger import Row
from papers.sfl_logs import Reference, by_place, key
from raylfl.report.style import MUTED, PALETTE, rc

PANELS = 12
DASHED = (0, (4, 1.6))
Place = tuple[Any, ...]  # task, classes, steps, method


def overlay(rows: Sequence[Row], refs: Mapping[str, Reference], outside: Mapping[Place, str]) -> Figure:
    """A figure of at most PANELS cells: our curves solid, the authors' logs dashed, one colour per learning rate.

    rows: our runs in the ledger; refs: excerpts of the authors' logs by the `key` of a cell. outside: (task, classes,
    steps, method) of a cell whose accuracies are outside the log's spread -> where. The cells in `outside` come first.
    The other panels are spread evenly over the remaining cells.
    """
    places = {
        cell: cell_rows
        for cell, cell_rows in by_place(rows, "method").items()
        if not refs or any(key(r.cell) in refs for r in cell_rows)
    }
    first = [cell for cell in places if cell in outside][:PANELS]
    others = [cell for cell in places if cell not in outside]
    room = min(PANELS - len(first), len(others))
    shown = [*first, *(others[k] for k in np.linspace(0, len(others) - 1, room).round().astype(int))]
    columns = min(4, max(1, len(shown)))
    lines = -(-max(1, len(shown)) // columns)
    rates = sorted({row.cell["lr"] for row in rows})
    colours = {lr: PALETTE[rank % len(PALETTE)] for rank, lr in enumerate(rates)}
    with rc():
        figure = Figure(figsize=(2.9 * columns, 2.3 * lines), layout="constrained", dpi=100)
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True)
        for ax, cell in zip(grid.flat, shown, strict=False):
            task, classes, steps, method = cell
            _panel(ax, places[cell], refs, colours)
            ax.set_title(f"{task}\nC={classes}, K={steps}, {method}")
            if cell in outside:
                ax.set_title(outside[cell], loc="right", size=7, weight="normal", color=MUTED)
        for ax in list(grid.flat)[len(shown) :]:
            ax.set_axis_off()
        for ax in list(grid.flat)[: len(shown)][-columns:]:
            ax.tick_params(labelbottom=True)  # also above an empty place in the grid
        label_beside_logs(figure)
        handles = [Line2D([], [], color=colour, label=f"lr {lr:g}") for lr, colour in colours.items()]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=8, handlelength=1.6)
    return figure


def _panel(ax: Axes, rows: Sequence[Row], refs: Mapping[str, Reference], colours: Mapping[float, str]) -> None:
    """Draws the panel of one cell: the runs, and above them each log once, in a darker colour."""
    logs = {row.cell["lr"]: (refs[key(row.cell)].curve, row.rounds) for row in rows if key(row.cell) in refs}
    for row in rows:
        ax.plot(*_points(row.curve), color=colours[row.cell["lr"]], linewidth=1.0, alpha=0.7)
    for lr, (curve, _) in logs.items():
        dark = tuple(0.65 * part for part in to_rgb(colours[lr]))
        ax.plot(*_points(curve), color=dark, linewidth=1.1, linestyle=DASHED)
    ends = [value for row in rows for value in row.window(row.rounds // 2)]
    ends += [value for curve, rounds in logs.values() for r, value in curve if r >= rounds // 2]
    if ends:
        ax.set_ylim(bottom=max(0.0, 100 * min(ends) - 3), top=min(100.5, 100 * max(ends) + 3))


def _points(curve: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [r + 1 for r, _ in curve], [100 * value for _, value in curve]
