"""Grids that are a figure: curves over rounds, or a number over the values of an axis; a table and claims beside it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from papers.base import Claim, Findings
from papers.grid import Grid, Point, nest
from papers.run_cache import RunCache
from papers.texts import ACCURACY, accuracy_text
from raylfl.report.derived import Stat
from raylfl.report.figures import PANEL
from raylfl.report.runs import Group
from raylfl.report.style import Line
from raylfl.report.tables import Column, ReportTable

Values = dict[Any, dict[str, dict[str, Any]]]  # panel -> line -> key -> value
Sweep = Mapping[float, Stat]  # value of the swept axis -> accuracy
K = TypeVar("K")


class Lines(Grid):
    """An experiment with a panel for each value of an axis and a curve for each value of another one.

    panel, line: these axes; without the first there is one panel. heading: the format of a panel's heading in figure
    and table. blocks: whether a panel's rows are a block of the table; otherwise the panel is its first column.
    metrics: of the curves, each in a panel of its own. stem: the file name of figure and table. caption: of the table.
    columns: of the table, besides the line's name. plot: options of each `draw.Plot`. looks: name of a line -> the
    method whose style it has; empty: each has its own. size: of a panel in inches. notes: for the reader.
    """

    panel: ClassVar[str] = ""
    line: ClassVar[str] = "method"
    heading: ClassVar[str] = "{}"
    blocks: ClassVar[bool] = True
    metrics: ClassVar[Sequence[str]] = (ACCURACY,)
    stem: ClassVar[str]
    caption: ClassVar[str]
    columns: ClassVar[Sequence[Column]]
    plot: ClassVar[Mapping[str, Any]] = {}
    looks: ClassVar[Mapping[str, str]] = {}
    size: ClassVar[tuple[float, float]] = PANEL
    notes: ClassVar[Sequence[str]] = ()

    def values(self, panel: Any, line: str, group: Group) -> dict[str, Any]:
        """The values of a curve in the table, and those that the claims need besides it and its `runs`."""
        raise NotImplementedError

    def values_of(self, panel: Any, lines: Mapping[str, Group], scale: str) -> dict[str, dict[str, Any]]:
        """Line -> its `values`; overridden where they depend on each other."""
        return {name: {"runs": group} | self.values(panel, name, group) for name, group in lines.items()}

    def claims(self, values: Values) -> list[Claim]:
        """The claims that the values decide."""
        return []

    def caption_of(self, values: Values) -> str:
        """The caption of the table."""
        return self.caption

    def plot_of(self, lines: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Options of a panel's `draw.Plot`; lines: line -> key -> value."""
        return self.plot

    def title(self, panel: Any) -> str:
        """The heading of a panel."""
        return self.heading.format(panel)

    def title_of(self, panel: Any, metric: str) -> str:
        """The heading of the panel of a metric in the figure."""
        return self.title(panel)

    def lines(self, cache: RunCache) -> dict[Any, dict[str, Group]]:
        """Panel -> line -> its runs."""
        groups = self.groups(cache)
        if self.panel:
            return nest(groups, self.panel, self.line)
        return {"": {point[self.line]: group for point, group in groups.items()}}

    def styles(self, looks: Mapping[str, str]) -> dict[str, Line]:
        """Name of a line -> its style; looks: name of a line -> the method whose style it has."""
        from papers import draw

        return draw.styles(looks)

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        groups = self.lines(cache)
        values = {panel: self.values_of(panel, lines, cache.scale) for panel, lines in groups.items()}
        plots = [
            draw.Plot(self.title_of(panel, metric), lines, metric, **self.plot_of(values[panel]))
            for panel, lines in groups.items()
            for metric in self.metrics
        ]
        rows = [
            ({"block" if self.blocks else "panel": self.title(panel)} if panel else {}) | {self.line: name, **of_line}
            for panel, lines in values.items()
            for name, of_line in lines.items()
        ]
        columns = [] if self.blocks else [Column("panel", self.panel)]
        columns += [Column(self.line, self.line), *self.columns]
        table = ReportTable(self.stem, self.caption_of(values), columns, rows)
        looks = self.looks or {name: name for lines in groups.values() for name in lines}
        figure = draw.curves(plots, self.styles(looks), self.size)
        return Findings([table], self.claims(values), {self.stem: figure}, self.notes)


class Sweeps(Grid):
    """An experiment with a panel of accuracies over the values of an axis, in which each method is a line.

    swept: this axis. stem: the file name of figure and table. caption: of the table. x_label: of the x axis. form: of
    the heading of a value's column. looks: method -> the one whose style it has. notes: for the reader.
    """

    stem: ClassVar[str]
    caption: ClassVar[str]
    swept: ClassVar[str] = "lr"
    x_label: ClassVar[str] = "learning rate"
    form: ClassVar[str] = "lr {:g}"
    looks: ClassVar[Mapping[str, str]]
    notes: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def sweeps(self, cache: RunCache) -> Mapping[Point, Sweep]:
        """Point without the swept axis -> value -> our accuracy."""

    def published(self, cell: Point) -> Sweep:
        """Value -> the paper's accuracy in a cell."""
        return {}

    @abstractmethod
    def heading(self, cell: Point) -> str:
        """The heading of the panel of a cell, which is that of the same cell with other methods."""

    @abstractmethod
    def claims(self, sweeps: Mapping[Point, Sweep]) -> list[Claim]:
        """The claims that our accuracies decide, of the cells with all values of the swept axis."""

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        sweeps = self.sweeps(cache)
        panels: dict[str, dict[str, tuple[Sweep, Sweep]]] = {}
        for cell, sweep in sweeps.items():
            panels.setdefault(self.heading(cell), {})[cell.method] = (sweep, self.published(cell))
        rows = [
            {"block": heading, "method": name}
            | {f"{x:g}": stat for x, stat in sweep.items()}
            | {f"{x:g} published": stat for x, stat in theirs.items() if x in sweep}
            for heading, lines in panels.items()
            for name, (sweep, theirs) in lines.items()
        ]
        values = sorted({x for sweep in sweeps.values() for x in sweep})
        heads = {
            f"{x:g}{key}": head
            for x in values
            for key, head in (("", self.form.format(x)), (" published", "published"))
        }
        shown = {key: head for key, head in heads.items() if any(key in row for row in rows)}
        columns = [Column(key, head, accuracy_text, None, True) for key, head in shown.items()]
        table = ReportTable(self.stem, self.caption, [Column("method", "method"), *columns], rows)
        figure = draw.sweeps(panels, draw.styles(self.looks), ACCURACY, self.x_label)
        points = self.points(cache.scale)
        every = {cell: {p[self.swept] for p in points if cell.items() <= p.items()} for cell in sweeps}
        complete = {cell: sweep for cell, sweep in sweeps.items() if sweep.keys() == every[cell]}
        return Findings([table], self.claims(complete) if complete else [], {self.stem: figure}, self.notes)


def best_value(sweep: Mapping[K, Stat]) -> K:
    """The key with the highest accuracy; the first of equal ones; a diverged one only if all are."""
    return max(sweep, key=lambda x: sweep[x].mean if np.isfinite(sweep[x].mean) else -1.0)
