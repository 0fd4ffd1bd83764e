"""The figures of a report: panels with a common legend, drawn together or one by one, and the overview."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from raylfl.errors import BadValue, did_you_mean
from raylfl.report import derived
from raylfl.report.curves import Curve, curve, default_window, draw, draw_profile
from raylfl.report.derived import AXES, Facet, by_method, counted_axes, grows, main_metric, scenario_keys, split
from raylfl.report.labels import display
from raylfl.report.runs import Group, Runs, group_runs, paths_of, read_runs
from raylfl.report.style import GRID, INK, MUTED, Drawing, LineStyle, line_styles, method_styles, rc
from raylfl.report.tables import Column, ReportTable, rank
from raylfl.report.wording import last_text, metric_name, target_text

if TYPE_CHECKING:
    from raylfl.report.promised import Promises  # imports torch

PANEL = (3.5, 2.6)  # inches: one column of a two-column paper
NOT_DIAGNOSTIC = ("cost/", "time/", "traffic/", "cohort/")
WIDTH = 10.5  # inches
MAX_ROWS = 10
MAX_TEXT = 28  # characters of a cell; a longer text is cut
GAP = 3.2  # characters between two columns


@dataclass(frozen=True)
class Panel:
    """One panel of a figure.

    title: a description for screen readers. size: width and height in inches. heading: the text above the axes.
    """

    title: str
    draw: Callable[[Axes], None]
    size: tuple[float, float] = PANEL
    heading: str = ""  # set if panels of one block differ in more than their axis labels


@dataclass(frozen=True)
class Block:
    """A figure of a report: panels that share a legend and a caption.

    name: the file name without its ending.
    """

    name: str
    caption: str
    panels: list[Panel]
    legend: list[tuple[str, LineStyle]] = field(default_factory=list)


@dataclass(frozen=True)
class Look:
    """The choices that all figures of a report share.

    metric: the main metric. last: the number of final rounds over which values are averaged. target: the target of the
    main metric, if any. methods: each method's style. promises: bounds from theorems, drawn as lines beside the curves.
    """

    metric: str
    last: int
    target: float | None
    methods: Mapping[str, LineStyle]
    promises: Promises | None = None

    def promised(self, part: Facet, metric: str) -> list[tuple[str, Curve, LineStyle]]:
        """The theorems' bounds on a metric over rounds: (legend text, curve, style)."""
        if self.promises is None:
            return []
        lines = line_styles(part.groups, self.methods)
        named = len(part.groups) > 1
        return [
            (f"{part.names[group]}, {text}" if named else text, item, line)
            for group in part.groups
            for text, item, line in self.promises.drawn(group, metric, lines[group])
        ]


def measured_in(groups: Sequence[Group]) -> list[str]:
    """The metrics that at least one run has measured, in order of appearance."""
    runs = [run for group in groups for run in group.runs]
    return list(dict.fromkeys(name for run in runs for name in run.metrics if run.measured(name)))


def require_measured(metric: str, measured: Sequence[str]) -> None:
    """Raises BadValue, with the nearest name, for a metric that no run has measured."""
    if metric not in measured:
        need = f"one that was measured: {', '.join(measured)}"
        raise BadValue("metric", got=metric, need=need, hint=did_you_mean(metric, measured))


def leading(part: Facet, look: Look) -> list[str]:
    """The metrics shown first: main metric, a held-out and the training loss, metrics that a theorem bounds."""
    measured = measured_in(part.groups)
    held_out = [name for name in ("test/loss", "val/loss", "global/loss") if name in measured][:1]
    losses = [name for name in (*held_out, "train/loss") if name in measured]
    return list(dict.fromkeys([look.metric, *losses, *(n for n in measured if look.promised(part, n))]))


def convergence(part: Facet, look: Look, most: int | None = None) -> Block:
    """The figure of the leading metrics, or the first `most`, against rounds; of many settings the best are drawn."""
    part, note = part.best(look.metric, look.last)
    return _block("convergence", part, look, leading(part, look)[:most], note)


def costs(part: Facet, look: Look) -> Block:
    """The figure of the main metric against traffic, local steps and virtual time, as far as they are recorded."""
    part, _ = part.best(look.metric, look.last)
    axes = counted_axes([run for group in part.groups for run in group.runs])
    panels = [curves_panel(part, look, look.metric, axis) for axis in axes if axis != "rounds"]
    caption = "The same lines against their costs; floats are counted up, down and between clients."
    return Block("costs", caption, list(filter(None, panels)), legend_of(part, look, [look.metric]))


def diagnostics(part: Facet, look: Look) -> Block:
    """The figure of all other metrics (not `leading`, not a cost) against rounds."""
    part, note = part.best(look.metric, look.last)
    seen = leading(part, look)
    names = [n for n in measured_in(part.groups) if n not in seen and not n.startswith(NOT_DIAGNOSTIC)]
    return _block("diagnostics", part, look, names, note)


def curves_panel(part: Facet, look: Look, metric: str, axis: str = "rounds") -> Panel | None:
    """The panel of one metric against a cost, a key of `derived.AXES`; None if no run has both."""
    window = default_window(part.groups, metric)
    lines = line_styles(part.groups, look.methods)
    pairs = [(curve(g, metric, axis, window=window), lines[g]) for g in part.groups]
    curves = [(item, line) for item, line in pairs if item is not None]
    if not curves:
        return None
    target = look.target if metric == look.metric else None
    title = f"{metric_name(metric)} against {AXES[axis].label}"
    promised = [(item, line) for _, item, line in look.promised(part, metric)] if axis == "rounds" else []
    return Panel(title, lambda ax: draw(ax, curves, metric, axis, target=target, promised=promised))


def _block(name: str, part: Facet, look: Look, metrics: Sequence[str], note: str) -> Block:
    """The figure `name` of these metrics against rounds; note: a sentence for the caption on the selection."""
    caption = []
    if max(len(group.runs) for group in part.groups) > 1:
        caption.append("Lines: means over seeds; bands: from the lowest to the highest seed.")
    if look.target is not None and look.metric in metrics:
        caption.append(f"Dotted: {target_text(look.metric, look.target, grows(part.groups, look.metric))}.")
    windows = sorted({default_window(part.groups, metric) for metric in metrics} - {1})
    if windows:
        over = " or ".join(map(str, windows))
        caption.append(f"Trailing moving averages over {over} measured rounds.")
    caption += [note] if note else []
    panels = filter(None, (curves_panel(part, look, metric) for metric in metrics))
    return Block(name, " ".join(caption), list(panels), legend_of(part, look, metrics))


def legend_of(part: Facet, look: Look, metrics: Sequence[str]) -> list[tuple[str, LineStyle]]:
    """The legend entries of the settings that measured one of these metrics, and of theorems' bounds on them."""
    lines = line_styles(part.groups, look.methods)
    drawn = [group for group in part.groups if any(run.measured(name) for run in group.runs for name in metrics)]
    promised = [(text, line) for metric in metrics for text, _, line in look.promised(part, metric)]
    return [(part.names[group], lines[group]) for group in drawn] + list(dict.fromkeys(promised))


def profile(groups: Sequence[Group], look: Look, key: str) -> Block:
    """The figure of the main metric over a config key, for methods with several values of it, all of them numbers.

    It has a panel for each scenario, of which the key itself is no part.
    """
    caption = f"Mean ± std over seeds and {last_text(look.last)}; each method at its best tuning of other options."
    panels, drawn = list[Panel](), set[str]()
    for part in split(groups, [other for other in scenario_keys(groups) if other != key]):
        points = derived.profile(part.groups, key, look.metric, look.last)
        points = {method: own for method, own in points.items() if len(own) > 1}
        drawn |= set(points)
        if points:
            draw = partial(draw_profile, profiles=points, lines=look.methods, metric=look.metric, key=key)
            log = not grows(part.groups, look.metric)
            title = f"{metric_name(look.metric)} over {key}"
            panels.append(Panel(title, partial(draw, log=log), heading=part.label))
    entries = [(display(method), look.methods[method]) for method in by_method(groups) if method in drawn]
    return Block(f"profile_{key}", caption, panels, entries)


def composed(panels: Sequence[Panel], legend: Sequence[tuple[str, LineStyle]] = ()) -> Figure:
    """All panels in one matplotlib figure, for papers: up to three panels in a row, the legend above."""
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = panels[0].size
    across = legend_columns(legend, columns * width)
    legend_height = 0.2 * math.ceil(len(legend) / across) + 0.1 if legend else 0.0
    figure = Drawing(figsize=(columns * width, rows * height + legend_height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, ax in zip(panels, axes, strict=False):
        panel.draw(ax)
        ax.set_title(panel.heading)
    for ax in axes[len(panels) :]:
        ax.remove()
    if legend:
        figure.legend(handles=legend_handles(legend), loc="outside upper left", ncols=across)
    return figure


def legend_columns(entries: Sequence[tuple[str, LineStyle]], width: float) -> int:
    """The number of legend entries that fit beside each other in `width` inches, at least 1."""
    longest = max((len(label) for label, _ in entries), default=0)
    return max(1, min(len(entries), int(width / (0.075 * longest + 0.6))))


def legend_handles(entries: Sequence[tuple[str, LineStyle]]) -> list[Line2D]:
    """The matplotlib handles of the legend entries."""
    return [Line2D([], [], label=label, **line.options()) for label, line in entries]


def plot(runs: Runs, metric: str | None = None, axis: str = "rounds") -> Figure:
    """The curves of one metric, with seeds of one setting pooled, as a matplotlib figure.

    A notebook shows the figure if it is the last value of a cell; `figure.savefig("name.pdf")` writes it. runs: one run
    or several: directories, results or loaded runs. metric: a name in metrics.jsonl; None: the main metric. axis: the
    cost on the x axis: rounds, floats, steps, virtual, link or computation. Raises BadConfig if there is no readable
    run, and BadValue for a metric that was not measured, or an unknown axis.
    """
    groups = group_runs(read_runs(paths_of(runs))[0])
    metric = metric or main_metric([run for group in groups for run in group.runs])
    if axis not in AXES:
        raise BadValue("axis", got=axis, need=f"one of {', '.join(AXES)}")
    require_measured(metric, measured_in(groups))
    part = Facet("", groups, {group: group.label for group in groups})
    look = Look(metric, 1, None, method_styles(list(by_method(groups))))
    if (panel := curves_panel(part, look, metric, axis)) is None:
        raise BadValue("axis", got=axis, need="a cost that the runs recorded")
    panel = replace(panel, size=(PANEL[0] * 1.4, PANEL[1] * 1.4))
    with rc():
        return composed([panel], legend_of(part, look, [metric]) if len(groups) > 1 else ())


def overview(
    part: Facet, look: Look, table: ReportTable, title: str, partition: Callable[[Axes], None] | None
) -> Figure | None:
    """The overview figure of one scenario; None without measurements.

    Its panels: the first two metrics of `figures.leading`, the partition if it is known (or else the main metric over
    the first cost), and the rows of the summary table.
    """
    curves, spent = convergence(part, look, most=2), costs(part, look)
    draws = [panel.draw for panel in curves.panels]
    below = partition or (spent.panels[0].draw if spent.panels else None)
    draws += [below] if below else []
    if not draws:
        return None
    figure = Drawing(figsize=(WIDTH, 7.6), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, hspace=0.04))
    axes = figure.subplots(2, 2).ravel()
    for drawn, ax in zip(draws, axes, strict=False):
        drawn(ax)
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
