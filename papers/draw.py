"""The figures of experiments: panels of curves, with the same line style for a method in every panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from papers.texts import ACCURACY
from raylfl.report.curves import Curve, curve, draw
from raylfl.report.derived import Stat
from raylfl.report.figures import PANEL, Block, Panel, composed, legend_handles
from raylfl.report.runs import Group
from raylfl.report.style import MARKERS, MUTED, Line, method_styles, rc
from raylfl.report.wording import axis_name, is_percent

HOLLOW: dict[str, Any] = {"dashes": (3, 2), "markerfacecolor": "white", "markeredgewidth": 1.0, "linewidth": 1.0}


@dataclass(frozen=True)
class Plot:
    """One panel of a figure: curves of a metric.

    lines: name of a curve -> its runs. axis: the x axis, a key of `derived.AXES`. band: the range drawn around a curve,
    `minmax` or `std` over seeds. window: the number of measured values in the moving average. limits: lower and upper
    limit of y (None: from the data); smaller values are drawn at the lower limit. right: upper limit of x. start: the
    metric's value before round 0, if known. factors: name of a curve -> factor of its costs on the x axis.
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


def curves(plots: Sequence[Plot], styles: Mapping[str, Line], size: tuple[float, float] = PANEL) -> Figure:
    """A figure of the panels under one legend.

    styles: name of a curve -> its style, in the order of the legend. size: width and height of a panel in inches.
    """
    panels = [Panel(plot.heading, _drawer(plot, styles), size, plot.heading) for plot in plots]
    shown = {name for plot in plots for name in plot.lines}
    legend = [(name, line) for name, line in styles.items() if name in shown]
    with rc():
        return composed(Block("", "", "", panels, legend))


def styles(methods: Mapping[str, str]) -> dict[str, Line]:
    """Name of a curve -> the line style of its method, as `method_styles` chooses it.

    methods: name of a curve -> its method.
    """
    looks = method_styles(list(methods.values()))
    return {name: looks[method] for name, method in methods.items()}


def _drawer(plot: Plot, looks: Mapping[str, Line]) -> Callable[[Axes], None]:
    def panel(ax: Axes) -> None:
        curves, (bottom, top) = [], plot.limits
        for name, group in plot.lines.items():
            item = curve(group, plot.metric, plot.axis, band=plot.band, window=plot.window)
            if item is not None:
                curves.append((_adjust(item, plot.factors.get(name, 1.0), bottom, plot.start), looks[name]))
        draw(ax, curves, plot.metric, plot.axis)
        ax.set_ylim(bottom=bottom, top=top)
        if plot.right is not None:
            ax.set_xlim(right=plot.right)

    return panel


def _adjust(item: Curve, factor: float, bottom: float | None, start: float | None) -> Curve:
    """The curve with its costs (x) multiplied by `factor` and its values (y) at least `bottom`.

    start: the value of an additional first point at cost 0; None: no such point.
    """
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
) -> Figure:
    """A figure of a metric over a tuned option: our results filled and solid, published ones hollow and dashed.

    panels: heading -> method -> (ours, published), each a map from the option's value to the statistic; published may
    be empty. looks: the style of each method. label: the label of the x axis.
    """
    factor = 100 if is_percent(metric) else 1

    def drawer(lines: Mapping[str, tuple[Mapping[float, Stat], Mapping[float, Stat]]]) -> Callable[[Axes], None]:
        def panel(ax: Axes) -> None:
            for name, pair in lines.items():
                for sweep, options in zip(pair, ({}, HOLLOW), strict=True):
                    points = [(x, factor * stat.mean) for x, stat in sorted(sweep.items()) if np.isfinite(stat.mean)]
                    if points:
                        ax.plot(*zip(*points, strict=True), **{**looks[name].options(), **options})
            ax.set(xlabel=label, ylabel=axis_name(metric), xscale="log")
            ax.xaxis.set_major_locator(FixedLocator(sorted({x for pair in lines.values() for x in pair[0]})))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))

        return panel

    plots = [Panel(heading, drawer(lines), PANEL, heading) for heading, lines in panels.items()]
    sides = {
        name: [any(lines[name][side] for lines in panels.values() if name in lines) for side in (0, 1)]
        for name in looks
    }
    return _with_published(plots, looks, sides)


def beside(panels: Mapping[str, Mapping[str, Mapping[str, tuple[Stat, Stat]]]], looks: Mapping[str, Line]) -> Figure:
    """A figure of test accuracies (mean and std) by cell and method: our results filled, published ones hollow.

    panels: heading -> cell of a table -> method -> (ours, published). looks: the style of each method.
    """

    def drawer(cells: Mapping[str, Mapping[str, tuple[Stat, Stat]]]) -> Callable[[Axes], None]:
        def panel(ax: Axes) -> None:
            for position, methods in enumerate(cells.values()):
                for rank, (name, pair) in enumerate(methods.items()):
                    for side, stat in enumerate(pair):
                        x = position + 0.8 * ((2 * rank + side + 0.5) / (2 * len(methods)) - 0.5)
                        if np.isfinite(stat.mean):
                            _point(ax, x, stat, looks[name], hollow=bool(side))
            ax.set_xticks(range(len(cells)), [cell.replace(", ", "\n") for cell in cells])
            ax.grid(axis="x", visible=False)
            ax.set(ylabel=axis_name(ACCURACY), xlim=(-0.6, len(cells) - 0.4))

        return panel

    widest = max(sum(map(len, cells.values())) for cells in panels.values())
    size = (max(PANEL[0], 0.3 * widest), PANEL[1])
    plots = [Panel(heading, drawer(cells), size, heading) for heading, cells in panels.items()]
    return _with_published(plots, looks)


def label_beside_logs(figure: Figure) -> None:
    """Labels the axes of a figure of accuracies over rounds, and says that the authors' logs are the dashed lines."""
    figure.supxlabel("rounds", size=8.5)
    figure.supylabel("test accuracy (%)", size=8.5)
    figure.suptitle("ours in full lines, the authors' logs dashed", size=8.5, color=MUTED, x=0.01, ha="left")


def _point(ax: Axes, x: float, stat: Stat, line: Line, hollow: bool) -> None:
    options: dict[str, Any] = {"color": line.hex, "marker": MARKERS[line.marker], "markeredgewidth": 1.0}
    options |= {"markerfacecolor": "white"} if hollow else {}
    std = 0.0 if np.isnan(stat.std) else 100 * stat.std
    ax.errorbar(x, 100 * stat.mean, yerr=std, linestyle="", elinewidth=0.8, **options)


def _with_published(
    panels: Sequence[Panel], looks: Mapping[str, Line], sides: Mapping[str, Sequence[bool]] | None = None
) -> Figure:
    """The panels under one legend, which also explains filled and hollow markers if a method has both.

    looks: the style of each method. sides: method -> (whether it has results of ours, whether it has published ones);
    None: all methods have both.
    """
    shown_sides = sides or dict.fromkeys(looks, (True, True))
    entries = [(name, line) for name, line in looks.items() if any(shown_sides[name])]
    kinds = [
        Line2D([], [], color=MUTED, marker="o", label="ours"),
        Line2D([], [], color=MUTED, marker="o", label="published", **HOLLOW),
    ]
    with rc():
        figure = composed(Block("", "", "", list(panels)))
        handles = legend_handles(entries)
        for handle, (name, _) in zip(handles, entries, strict=True):
            if not shown_sides[name][0]:
                handle.set(**HOLLOW)
        handles += kinds if any(all(both) for both in shown_sides.values()) else []
        columns = max(int(figure.get_figwidth() / 1.15), 1)
        figure.legend(handles=handles, loc="outside upper left", ncols=min(columns, len(handles)))
    return figure
