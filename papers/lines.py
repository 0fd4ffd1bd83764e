"""Grids that are a figure: curves over rounds, or a number over the values of an axis; a table and claims beside it."""

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
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import axis_name

Values = dict[Any, dict[str, dict[str, Any]]]  # panel -> line -> key -> value
Sweep = Mapping[float, Stat]  # value of the swept axis -> accuracy
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
    """An experiment with a panel for each value of an axis and a curve for each value of another one.

    panel, line: these axes; without the first there is one panel. blocks: whether a panel's rows are a block of the
    table; otherwise the panel is its first column. metrics: of the curves, each in a panel of its own. columns: of the
    table, besides the line's name. plot: options of each `draw.Plot`. size: of a panel in inches.
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
            return nest(groups, self.panel, self.line)
        return {"": {point[self.line]: group for point, group in groups.items()}}

    def values(self, panel: Any, line: str, group: Group) -> dict[str, Any]:
        """The values of a curve for the table and the claims."""
        return {}

    def values_of(self, panel: Any, lines: Mapping[str, Group], scale: str) -> dict[str, dict[str, Any]]:
        """Line -> its `runs` and `values`; overridden where they depend on each other."""
        return {name: {"runs": group} | self.values(panel, name, group) for name, group in lines.items()}

    def claims(self, values: Values) -> list[Claim]:
        return []

    def caption_of(self, values: Values) -> str:
        return self.caption.format(self)

    def plot_of(self, lines: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Options of a panel's `draw.Plot`."""
        return self.plot

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        groups = self.lines(cache)
        values = {panel: self.values_of(panel, lines, cache.scale) for panel, lines in groups.items()}
        plots, rows = [], []
        for panel, lines in groups.items():
            title, options = self.title(panel), self.plot_of(values[panel])
            head = {} if not panel else {"block": title} if self.blocks else {"panel": panel}
            rows += [head | {self.line: name, **of_line} for name, of_line in values[panel].items()]
            for metric in self.metrics:
                heading = title or axis_name(metric).removesuffix(" (%)").capitalize()
                plots.append(draw.Plot(heading, lines, metric, **options))
        columns = [] if self.blocks else [Column("panel", self.panel)]
        columns += [Column(self.line, self.line), *self.columns]
        table = ReportTable(self.stem, self.caption_of(values), columns, rows)
        looks = self.looks or {name: name for lines in groups.values() for name in lines}
        figure = draw.curves(plots, draw.styles(looks), self.size)
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
        """The claims that the cells with all values of the swept axis decide."""
        raise NotImplementedError

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        sweeps = self.sweeps(cache)
        panels: dict[str, dict[str, tuple[Sweep, Sweep]]] = {}
        for cell, sweep in sweeps.items():
            panels.setdefault(self.title(cell), {})[cell.method] = (sweep, self.published(cell))
        rows = [
            {"block": heading, "method": name}
            | {f"{x:g}": stat for x, stat in sweep.items()}
            | {f"{x:g} published": stat for x, stat in theirs.items() if x in sweep}
            for heading, lines in panels.items()
            for name, (sweep, theirs) in lines.items()
        ]
        columns = [
            Column(key, head, accuracy_text, None, True)
            for x in sorted({x for sweep in sweeps.values() for x in sweep})
            for key, head in ((f"{x:g}", self.form.format(x)), (f"{x:g} published", "published"))
            if any(key in row for row in rows)
        ]
        table = ReportTable(self.stem, self.caption, [Column("method", "method"), *columns], rows)
        figure = draw.sweeps(panels, draw.styles(self.looks), ACCURACY, self.x_label)
        points = self.points(cache.scale)
        every = {cell: {p[self.swept] for p in points if cell.items() <= p.items()} for cell in sweeps}
        complete = {cell: sweep for cell, sweep in sweeps.items() if sweep.keys() == every[cell]}
        return Findings([table], self.claims(complete) if complete else [], {self.stem: figure}, self.notes)


def best_value(sweep: Mapping[K, Stat]) -> K:
    """The first key with the highest accuracy; a diverged one only if all are."""
    return max(sweep, key=lambda x: sweep[x].mean if np.isfinite(sweep[x].mean) else -1.0)
