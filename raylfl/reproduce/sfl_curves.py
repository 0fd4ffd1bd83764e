"""Figures of our accuracy curves and the authors' in SFL's tables: one panel per cell, from the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raylfl.report.style import MUTED, PALETTE, rc
from raylfl.reproduce.draw import label_beside_logs
from raylfl.reproduce.ledger import Row
from raylfl.reproduce.sfl_reference import Reference, by_place, key

PANELS = 12


def overlay(rows: Sequence[Row], refs: Mapping[str, Reference]) -> Figure:
    """A figure of at most PANELS cells: our curves solid, the authors' logs dashed, one colour per learning rate.

    rows: our runs in the ledger; refs: excerpts of the authors' logs by the `key` of a cell.
    """
    places = [(place, own) for place, own in by_place(rows, "method").items() if any(key(r.cell) in refs for r in own)]
    chosen = np.linspace(0, len(places) - 1, min(PANELS, len(places))).round().astype(int)
    shown = [places[k] for k in chosen]
    columns = min(4, max(1, len(shown)))
    lines = -(-max(1, len(shown)) // columns)
    with rc():
        figure = Figure(figsize=(2.7 * columns, 2.2 * lines), layout="constrained", dpi=100)
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True)
        for ax, (place, own) in zip(grid.flat, shown, strict=False):
            task, classes, steps, method = place
            _panel(ax, own, refs)
            ax.set_title(f"{task}\nC={classes}, K={steps}, {method}")
        for ax in list(grid.flat)[len(shown) :]:
            ax.set_axis_off()
        for ax in list(grid.flat)[: len(shown)][-columns:]:
            ax.tick_params(labelbottom=True)  # also above an empty place in the grid
        label_beside_logs(figure)
    return figure


def _panel(ax: Axes, rows: Sequence[Row], refs: Mapping[str, Reference]) -> None:
    rates = sorted({row.cell["lr"] for row in rows})
    for row in rows:
        colour = PALETTE[rates.index(row.cell["lr"]) % len(PALETTE)]
        ref = refs.get(key(row.cell))
        if ref:
            ax.plot(*_points(ref.curve), color=colour, linewidth=1.0, linestyle=(0, (3, 2)), alpha=0.75)
        ax.plot(*_points(row.curve), color=colour, linewidth=1.0, label=f"lr {row.cell['lr']:g}")
    if rows:
        ends = [value for row in rows for value in row.window(row.rounds // 2)]
        if ends:
            ax.set_ylim(bottom=max(0.0, 100 * min(ends) - 8), top=min(100.5, 100 * max(ends) + 3))
    handles, labels = ax.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    box = {"frameon": True, "edgecolor": "none", "framealpha": 0.85}
    ax.legend(named.values(), named.keys(), fontsize=6.5, loc="lower right", labelcolor=MUTED, ncols=2, **box)


def _points(curve: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [r + 1 for r, _ in curve], [100 * value for _, value in curve]
