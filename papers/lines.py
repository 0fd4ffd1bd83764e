"""Grids that are a figure: panels of curves, a table with a row per curve, and claims about its values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from papers.base import Claim, Findings
from papers.grid import Grid, nest
from papers.run_cache import RunCache
from papers.texts import ACCURACY
from raylfl.report.figures import PANEL
from raylfl.report.runs import Group
from raylfl.report.style import Line
from raylfl.report.tables import Column, ReportTable

Values = dict[str, dict[str, dict[str, Any]]]  # panel -> line -> key -> value


class Lines(Grid):
    """An experiment with a panel for each value of an axis and a curve for each value of another one.

    panel, line: these axes; without the first there is one panel. heading: the format of the heading of a panel and of
    its rows. metrics: of the curves, each in a panel of its own. stem: the file name of figure and table. columns: of
    the table, besides the line's name. looks: name of a line -> the method whose style it has; empty: each has its own.
    size: of a panel in inches. notes: for the reader.
    """

    panel: ClassVar[str] = ""
    line: ClassVar[str] = "method"
    heading: ClassVar[str] = "{}"
    metrics: ClassVar[Sequence[str]] = (ACCURACY,)
    stem: ClassVar[str]
    columns: ClassVar[Sequence[Column]]
    looks: ClassVar[Mapping[str, str]] = {}
    size: ClassVar[tuple[float, float]] = PANEL
    notes: ClassVar[Sequence[str]] = ()

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        """The values of a curve in the table, and those that the claims need besides."""
        raise NotImplementedError

    def values_of(self, panel: str, lines: Mapping[str, Group], scale: str) -> dict[str, dict[str, Any]]:
        """Line -> its `values`; overridden where they depend on each other."""
        return {name: self.values(panel, name, group) for name, group in lines.items()}

    @abstractmethod
    def caption(self, values: Values) -> str:
        """The caption of the table."""

    @abstractmethod
    def claims(self, values: Values) -> list[Claim]:
        """The claims that the values decide."""

    def plot(self, lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Options of a panel's `draw.Plot`; lines: line -> key -> value."""
        return {}

    def title(self, panel: str, metric: str) -> str:
        """The heading of a panel of the figure."""
        return self.heading.format(panel)

    def lines(self, cache: RunCache) -> dict[str, dict[str, Group]]:
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
            draw.Plot(self.title(panel, metric), lines, metric, **self.plot(values[panel]))
            for panel, lines in groups.items()
            for metric in self.metrics
        ]
        rows = [
            ({"block": self.heading.format(panel)} if self.panel else {}) | {self.line: name, **of_line}
            for panel, lines in values.items()
            for name, of_line in lines.items()
        ]
        table = ReportTable(self.stem, self.caption(values), [Column(self.line, self.line), *self.columns], rows)
        looks = self.looks or {name: name for lines in groups.values() for name in lines}
        figure = draw.curves(plots, self.styles(looks), self.size)
        return Findings([table], self.claims(values), {self.stem: figure}, self.notes)
