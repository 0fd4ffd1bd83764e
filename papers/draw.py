"""The figures of experiments: panels of curves, with the same line style for a method in every panel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from raylfl.report.curves import Curve, curve, draw
from raylfl.report.derived import Stat
from raylfl.report.figures import PANEL, Block, Panel, composed, legend_handles
from raylfl.report.runs import Group
from raylfl.report.style import MUTED, Line, method_styles, rc
from raylfl.report.wording import axis_name, is_percent

HOLLOW: dict[str, Any] = {"dashes": (3, 2), "markerfacecolor": "white", "markeredgewidth": 1.0, "linewidth": 1.0}


@dataclass(frozen=True)
class Plot:
    """One panel of a figure: curves of a metric.

    lines: name of a curve -> its runs. axis: the x axis, a key of `derived.AXES`. band: around a curve, `minmax` or
    `std` over seeds. window: the number of values in the moving average. limits: of y; smaller values are drawn at the
    lower one. right: upper limit of x. start: the metric's value before round 0, if known. factors: name of a curve ->
    factor of its costs on the x axis. logs: name of a curve -> the authors' log, pairs (round from 0, value), dashed.
    """

    heading: str
    lines: Mapping[str, Group]
    metric: str
    axis: str = "rounds"
    band: str = "minmax"
    window: int = 1
    limits: tuple[float | None, float | None] = (None, None)
    right: float | None = None
    start: float | None = None
    factors: Mapping[str, float] = field(default_factory=dict)
    logs: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


def curves(plots: Sequence[Plot], styles: Mapping[str, Line], size: tuple[float, float] = PANEL) -> Figure:
    """A figure of the panels under one legend, in the order of `styles`."""
    panels = [Panel(plot.heading, partial(_draw, plot=plot, looks=styles), size, plot.heading) for plot in plots]
    shown = {name for plot in plots for name in plot.lines}
    legend = [(name, line) for name, line in styles.items() if name in shown]
    legend += [("authors' logs", Line(4, 1, thin=True))] if any(plot.logs for plot in plots) else []
    with rc():
        return composed(Block("", "", "", panels, legend))


def styles(methods: Mapping[str, str]) -> dict[str, Line]:
    """Name of a curve -> the style of its method; that of a form, such as `fedaware, normalised`, has its colour."""
    forms = {method: method.partition(", ")[0] for method in methods.values()}
    looks = method_styles([method for method, first in forms.items() if method == first or first not in forms])
    for method, first in forms.items():
        if method not in looks:
            looks[method] = Line(looks[first].color, looks[first].dash + 1, looks[first].marker + 1)
    return {name: looks[method] for name, method in methods.items()}


def _draw(ax: Axes, plot: Plot, looks: Mapping[str, Line]) -> None:
    curves, (bottom, top) = [], plot.limits
    for name, group in plot.lines.items():
        item = curve(group, plot.metric, plot.axis, band=plot.band, window=plot.window)
        if item is not None:
            curves.append((_adjust(item, plot.factors.get(name, 1.0), bottom, plot.start), looks[name]))
    columns = {name: np.array(log).T for name, log in plot.logs.items() if log}
    logs = [(Curve(x + 1, y, y, y), replace(looks[name], dash=1, thin=True)) for name, (x, y) in columns.items()]
    draw(ax, curves, plot.metric, plot.axis, promised=logs)
    ax.set_ylim(bottom=bottom, top=top)
    if logs:  # what matters is the second half
        points = np.hstack([np.array(line.get_data()) for line in ax.lines])
        ax.set_ylim(bottom=max(0.0, float(points[1, points[0] > points[0].max() / 2].min()) - 3))
    if plot.right is not None:
        ax.set_xlim(right=plot.right)


def _adjust(item: Curve, factor: float, bottom: float | None, start: float | None) -> Curve:
    first = [] if start is None else [start]
    floor = -np.inf if bottom is None else bottom
    x = np.concatenate([[0.0] * len(first), item.x * factor])
    mean, low, high = (np.maximum(np.concatenate([first, row]), floor) for row in (item.mean, item.low, item.high))
    return Curve(x, mean, low, high, item.diverged)


def sweeps(
    panels: Mapping[str, Mapping[str, tuple[Mapping[float, Stat], Mapping[float, Stat]]]],
    looks: Mapping[str, Line],
    metric: str,
    label: str,
    ticks: Sequence[str] = (),
) -> Figure:
    """A figure of a metric over a tuned option: our results filled and solid, published ones hollow and dashed.

    panels: heading -> method -> (ours, published), by value of the option. label: of the x axis, which is logarithmic.
    ticks: the texts of the values 0, 1, 2, ... if these are positions on a linear axis.
    """
    factor = 100 if is_percent(metric) else 1

    def panel(ax: Axes, lines: Mapping[str, tuple[Mapping[float, Stat], Mapping[float, Stat]]]) -> None:
        for name, pair in lines.items():
            for sweep, options in zip(pair, ({}, HOLLOW), strict=True):
                points = [(x, factor * stat.mean) for x, stat in sorted(sweep.items()) if np.isfinite(stat.mean)]
                if points:
                    ax.plot(*zip(*points, strict=True), **{**looks[name].options(), **options})
        ax.set(xlabel=label, ylabel=axis_name(metric), xscale="linear" if ticks else "log")
        if ticks:
            ax.set_xticks(range(len(ticks)), ticks)
            return
        ax.xaxis.set_major_locator(FixedLocator(sorted({x for pair in lines.values() for x in pair[0]})))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))

    sides = {
        name: [any(lines[name][side] for lines in panels.values() if name in lines) for side in (0, 1)]
        for name in looks
    }
    entries = [(name, line) for name, line in looks.items() if any(sides[name])]
    with rc():
        plots = [Panel(heading, partial(panel, lines=lines), PANEL, heading) for heading, lines in panels.items()]
        figure = composed(Block("", "", "", plots))
        handles = legend_handles(entries)
        for handle, (name, _) in zip(handles, entries, strict=True):
            if not sides[name][0]:
                handle.set(**HOLLOW)
        if any(all(both) for both in sides.values()):
            handles += [
                Line2D([], [], color=MUTED, marker="o", label="ours"),
                Line2D([], [], color=MUTED, marker="o", label="published", **HOLLOW),
            ]
        columns = max(int(figure.get_figwidth() / 1.15), 1)
        figure.legend(handles=handles, loc="outside upper left", ncols=min(columns, len(handles)))
    return figure
