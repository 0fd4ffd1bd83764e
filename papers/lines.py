"""Grids that are a figure: curves over rounds, or a number over the values of an axis; a table and claims beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from papers.base import Claim, Findings
from papers.grid import Grid, Point, by
from papers.numbers import ACCURACY, accuracy_text
from papers.run_cache import RunCache
from raylfl.diagnostics.metric_names import is_percent
from raylfl.report.curves import Curve, curve, draw
from raylfl.report.derived import Stat
from raylfl.report.figures import PANEL, Panel, composed, legend_handles
from raylfl.report.runs import Group
from raylfl.report.style import MUTED, LineStyle, method_styles, rc
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import axis_name

Values = dict[Any, dict[str, dict[str, Any]]]  # panel -> line -> key -> value
Sweep = Mapping[float, Stat]  # value of the swept axis -> accuracy
Pairs = Mapping[str, tuple[Sweep, Sweep]]  # method -> (ours, published)
K = TypeVar("K")


class Pictured(Grid):
    """An experiment with one figure and one table, `stem`.

    heading: the format of a panel's heading from the panel; empty: its text. caption: of the table, a format of the
    experiment. looks: name of a line -> the method whose style it has; empty: each has its own.
    """

    stem: ClassVar[str]
    heading: ClassVar[str] = ""
    caption: ClassVar[str]
    looks: ClassVar[Mapping[str, str]] = {}
    notes: ClassVar[Sequence[str]] = ()

    def title(self, panel: Any) -> str:
        return self.heading.format(panel) if self.heading else str(panel)


class Lines(Pictured):
    """An experiment with a panel for each value of the axis `panel`, if any, and a curve for each one of `line`.

    blocks: whether a panel's rows are a block of the table; otherwise the panel is its first column. metrics: of the
    curves, each in its own panel. columns: besides the line's name. plot: options of each `Plot`.
    """

    panel: ClassVar[str] = ""
    line: ClassVar[str] = "method"
    blocks: ClassVar[bool] = True
    metrics: ClassVar[Sequence[str]] = (ACCURACY,)
    columns: ClassVar[Sequence[Column]]
    plot: ClassVar[Mapping[str, Any]] = {}
    size: ClassVar[tuple[float, float]] = PANEL

    def lines(self, cache: RunCache) -> dict[Any, dict[str, Group]]:
        """Panel -> line -> its runs."""
        groups = self.groups(cache)
        if self.panel:
            return by(groups, self.line, self.panel)
        return {"": {point[self.line]: group for point, group in groups.items()}}

    def values(self, panel: Any, line: str, group: Group) -> dict[str, Any]:
        """The values of a curve for the table and the claims."""
        return {}

    def values_of(self, panel: Any, lines: Mapping[str, Group], scale: str) -> dict[str, dict[str, Any]]:
        """Line of the figure -> its `runs` and `values`; overridden where they depend on each other."""
        return {name: {"runs": group} | self.values(panel, name, group) for name, group in lines.items()}

    def claims(self, values: Values) -> list[Claim]:
        return []

    def caption_of(self, values: Values) -> str:
        return self.caption.format(self)

    def plot_of(self, lines: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Options of a panel's `Plot`."""
        return self.plot

    def run(self, cache: RunCache) -> Findings:
        groups = self.lines(cache)
        values = {panel: self.values_of(panel, lines, cache.scale) for panel, lines in groups.items()}
        plots, rows = [], []
        for panel, lines in groups.items():
            title, options = self.title(panel), self.plot_of(values[panel])
            head = {} if not panel else {"block": title} if self.blocks else {"panel": panel}
            rows += [head | {self.line: name, **of_line} for name, of_line in values[panel].items()]
            for metric in self.metrics:
                heading = title or axis_name(metric).removesuffix(" (%)").capitalize()
                plots.append(Plot(heading, lines, metric, **options))
        columns = [] if self.blocks else [Column("panel", self.panel)]
        columns += [Column(self.line, self.line), *self.columns]
        table = ReportTable(self.stem, self.caption_of(values), columns, rows)
        looks = self.looks or {name: name for lines in groups.values() for name in lines}
        figure = curves_figure(plots, styles(looks), self.size)
        return Findings([table], self.claims(values), {self.stem: figure}, self.notes)


class Sweeps(Pictured):
    """An experiment with accuracies over the values of the axis `swept`, a line for each method.

    A panel has the cells with the same heading. form: of the heading of a value's column.
    """

    swept: ClassVar[str] = "lr"
    x_label: ClassVar[str] = "learning rate"
    form: ClassVar[str] = "lr {:g}"

    def sweeps(self, cache: RunCache) -> Mapping[Point, Sweep]:
        """Point without the swept axis -> value -> our accuracy."""
        raise NotImplementedError

    def published(self, cell: Point) -> Sweep:
        """Value of the swept axis -> the paper's accuracy."""
        return {}

    def claims(self, sweeps: Mapping[Point, Sweep]) -> list[Claim]:
        """The claims of the cells with all values of the swept axis."""
        raise NotImplementedError

    def run(self, cache: RunCache) -> Findings:
        sweeps = self.sweeps(cache)
        panels: dict[str, dict[str, tuple[Sweep, Sweep]]] = {}
        for cell, sweep in sweeps.items():
            panels.setdefault(self.title(cell), {})[cell.method] = (sweep, self.published(cell))
        rows: list[dict[str, Any]] = []
        for heading, lines in panels.items():
            for name, (sweep, theirs) in lines.items():
                row = {f"{x:g} published": stat for x, stat in theirs.items() if x in sweep}
                rows.append({"block": heading, "method": name} | {f"{x:g}": stat for x, stat in sweep.items()} | row)
        heads: dict[str, str] = {}
        for x in sorted({x for sweep in sweeps.values() for x in sweep}):
            heads |= {f"{x:g}": self.form.format(x), f"{x:g} published": "published"}
        known = {key for row in rows for key in row}
        columns = [Column(key, head, accuracy_text, None, True) for key, head in heads.items() if key in known]
        table = ReportTable(self.stem, self.caption, [Column("method", "method"), *columns], rows)
        figure = sweeps_figure(panels, styles(self.looks), ACCURACY, self.x_label)
        points = self.points(cache.scale)
        every = {cell: {p[self.swept] for p in points if cell.items() <= p.items()} for cell in sweeps}
        complete = {cell: sweep for cell, sweep in sweeps.items() if sweep.keys() == every[cell]}
        return Findings([table], self.claims(complete) if complete else [], {self.stem: figure}, self.notes)


def best_value(sweep: Mapping[K, Stat]) -> K:
    """The first key with the highest accuracy; a diverged one only if all are."""
    return max(sweep, key=lambda x: sweep[x].mean if np.isfinite(sweep[x].mean) else -1.0)


HOLLOW: dict[str, Any] = {"dashes": (3, 2), "markerfacecolor": "white", "markeredgewidth": 1.0, "linewidth": 1.0}


@dataclass(frozen=True)
class Plot:
    """One panel of a figure: curves of a metric.

    lines: name of a curve -> its runs. axis: of x, a key of `derived.AXES`. band: around a curve, `minmax` or `std`
    over seeds. window: of the moving average. limits: of y; smaller values are drawn at the lower one. right: of x.
    start: the value before round 0. factors: of a curve's costs on the x axis. logs: the authors', (round, value).
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


def curves_figure(plots: Sequence[Plot], styles: Mapping[str, LineStyle], size: tuple[float, float] = PANEL) -> Figure:
    """A figure of the panels under one legend, in the order of `styles`."""
    panels = [Panel(plot.heading, partial(_draw, plot=plot, looks=styles), size, plot.heading) for plot in plots]
    shown = {name for plot in plots for name in plot.lines}
    legend = [(name, line) for name, line in styles.items() if name in shown]
    legend += [("authors' logs", LineStyle(4, 1, thin=True))] if any(plot.logs for plot in plots) else []
    with rc():
        return composed(panels, legend)


def styles(methods: Mapping[str, str]) -> dict[str, LineStyle]:
    """Name of a curve -> the style of its method; that of a form, such as `fedaware, normalised`, has its colour."""
    forms = {method: method.partition(", ")[0] for method in methods.values()}
    looks = method_styles([method for method, first in forms.items() if method == first or first not in forms])
    for method, first in forms.items():
        if method not in looks:
            looks[method] = LineStyle(looks[first].color, looks[first].dash + 1, looks[first].marker + 1)
    return {name: looks[method] for name, method in methods.items()}


def _draw(ax: Axes, plot: Plot, looks: Mapping[str, LineStyle]) -> None:
    curves, (bottom, top) = [], plot.limits
    start, floor = [] if plot.start is None else [plot.start], -np.inf if bottom is None else bottom
    for name, group in plot.lines.items():
        item = curve(group, plot.metric, plot.axis, band=plot.band, window=plot.window)
        if item is not None:
            x = np.concatenate([[0.0] * len(start), item.x * plot.factors.get(name, 1.0)])
            rows = (item.mean, item.low, item.high)
            mean, low, high = (np.maximum(np.concatenate([start, row]), floor) for row in rows)
            curves.append((Curve(x, mean, low, high, item.diverged), looks[name]))
    columns = {name: np.array(log).T for name, log in plot.logs.items() if log}
    logs = [(Curve(x + 1, y, y, y), replace(looks[name], dash=1, thin=True)) for name, (x, y) in columns.items()]
    draw(ax, curves, plot.metric, plot.axis, promised=logs)
    ax.set_ylim(bottom=bottom, top=top)
    if logs:  # what matters is the second half
        points = np.hstack([np.array(line.get_data()) for line in ax.lines])
        ax.set_ylim(bottom=max(0.0, float(points[1, points[0] > points[0].max() / 2].min()) - 3))
    if plot.right is not None:
        ax.set_xlim(right=plot.right)


def sweeps_figure(panels: Mapping[str, Pairs], looks: Mapping[str, LineStyle], metric: str, label: str) -> Figure:
    """A figure of a metric over an option: our results filled and solid, published ones hollow and dashed.

    label: of the x axis, on which the values of the option have equal distances.
    """
    factor = 100 if is_percent(metric) else 1
    values = sorted({x for lines in panels.values() for pair in lines.values() for sweep in pair for x in sweep})

    def panel(ax: Axes, lines: Pairs) -> None:
        for name, pair in lines.items():
            for sweep, options in zip(pair, ({}, HOLLOW), strict=True):
                finite = {x: factor * stat.mean for x, stat in sorted(sweep.items()) if np.isfinite(stat.mean)}
                if finite:
                    style = {**looks[name].options(), **options}
                    ax.plot([values.index(x) for x in finite], list(finite.values()), **style)
        ax.set(xlabel=label, ylabel=axis_name(metric))
        ax.set_xticks(range(len(values)), [f"{x:g}" for x in values])

    ours, theirs = ({name for lines in panels.values() for name, pair in lines.items() if pair[k]} for k in (0, 1))
    entries = [(name, line) for name, line in looks.items() if name in ours | theirs]
    with rc():
        plots = [Panel(heading, partial(panel, lines=lines), PANEL, heading) for heading, lines in panels.items()]
        figure = composed(plots)
        handles = legend_handles(entries)
        for handle, (name, _) in zip(handles, entries, strict=True):
            if name not in ours:
                handle.set(**HOLLOW)
        for word, options in {"ours": {}, "published": HOLLOW}.items() if ours & theirs else ():
            handles.append(Line2D([], [], color=MUTED, marker="o", label=word, **options))
        columns = max(int(figure.get_figwidth() / 1.15), 1)
        figure.legend(handles=handles, loc="outside upper left", ncols=min(columns, len(handles)))
    return figure
