"""Grids: experiments whose runs are the points of a grid, such as task x method x learning rate, on some seeds."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, TypeVar

from papers.base import SCALES, PaperResult, plain
from papers.ledger import POINTS, Row, last_value
from papers.run_cache import CellConfig, RunCache, set_keys
from raylfl.report.runs import Group, RunRecord

MOST = 12  # cells that are named
T = TypeVar("T")
Axis = Mapping[Any, Mapping[str, Any]]


class Point(dict[str, Any]):
    """A point of a grid: axis -> value. Its values are also attributes, and it can be a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __getattr__(self, axis: str) -> Any:
        try:
            return self[axis]
        except KeyError:
            raise AttributeError(f"no axis {axis}") from None

    def but(self, **values: Any) -> "Point":
        """A copy with other values of some axes."""
        return Point(self | values)

    def without(self, *axes: str) -> "Point":
        """A copy without these axes."""
        return Point({axis: value for axis, value in self.items() if axis not in axes})


class Grid(PaperResult):
    """An experiment with one run for each point of a grid and each seed.

    axes: axis -> value -> what the value changes in the config: dotted keys; under `smoke` or `paper`, those of one
    scale; under `base`, config files. small: axis -> the values that are run at scale `smoke`, if not all. name: the
    format of a point's label; empty: its values, separated by commas. base: the config files of all points. options:
    dotted keys of all points; smoke, paper: those of one scale, with files under `base`. seeds: of each point; of an
    axis that is `tuned` only the best value on the first seed has all of them. smoke_seeds: their number at scale
    `smoke`. cells: the form of a point in the ledger: `text` (each value as for `--only`), `values` (as they are) or
    `label` (one key `run`). measures: name -> a number of a run that the curve in the ledger's row does not determine.
    curves: the metrics, besides the main one, of which the row has a curve, of at most `curve_points` points.
    """

    scales: ClassVar[tuple[str, ...]] = SCALES
    axes: ClassVar[dict[str, Axis]]
    small: ClassVar[Mapping[str, Sequence[Any]]] = {}
    name: ClassVar[str] = ""
    cells: ClassVar[str] = "text"
    base: ClassVar[Sequence[str]]
    options: ClassVar[dict[str, Any]] = {}
    smoke: ClassVar[dict[str, Any]] = {}
    paper: ClassVar[dict[str, Any]] = {}
    seeds: ClassVar[Sequence[int]] = (0,)
    smoke_seeds: ClassVar[int] = 1
    tuned: ClassVar[str] = ""
    measures: ClassVar[Mapping[str, Callable[[RunRecord], float | None]]] = {}
    curves: ClassVar[Sequence[str]] = ()
    curve_points: ClassVar[int] = POINTS

    def points(self, scale: str) -> list[Point]:
        axes = {**self.axes, **self.small} if scale == "smoke" else self.axes
        every = (Point(zip(axes, values, strict=True)) for values in product(*axes.values()))
        return [point for point in every if self.has(point, scale)]

    def has(self, point: Point, scale: str) -> bool:
        """Whether the experiment has a point of the axes' product at this scale."""
        return True

    def label(self, point: Point) -> str:
        """The name of a point, unique within the experiment."""
        return self.name.format(**point) if self.name else ", ".join(map(str, point.values()))

    def cell(self, point: Point) -> dict[str, Any]:
        if self.cells == "label":
            return {"run": plain(self.label(point))}
        return dict(point) if self.cells == "values" else {axis: plain(value) for axis, value in point.items()}

    def options_of(self, point: Point, scale: str) -> Mapping[str, Any]:
        """Dotted keys of a point that win over all others."""
        return {}

    def setting(self, point: Point, scale: str) -> CellConfig:
        parts: list[Mapping[str, Any]] = [self.smoke if scale == "smoke" else self.paper, self.options]
        for value in (self.axes[axis][value] for axis, value in point.items() if axis in self.axes):
            parts += [value, value.get(scale, {})]
        files = [*self.base, *(name for part in parts for name in part.get("base", ()))]
        files += [f"reproduce/{scale}"] if self.scales else []
        options = {key: value for part in parts for key, value in part.items() if key not in ("base", *SCALES)}
        config = set_keys({"base": files}, {**options, **self.options_of(point, scale)})
        return CellConfig(self.label(point), config, self.cell(point))

    def groups(
        self, cache: RunCache, points: Iterable[Point] | None = None, seeds: Sequence[int] | None = None
    ) -> dict[Point, Group]:
        """Point -> its runs, for those of the points that `--only` selects and that have runs.

        Raises BadConfig if `--only` has patterns for a key that match none of its values.
        """
        points, seeds = list(self.points(cache.scale) if points is None else points), seeds or self.of_scale(cache)
        cache.only.check([*points, *({"seed": seed} for seed in seeds)])
        settings = {point: self.setting(point, cache.scale) for point in points if cache.only.keeps(**point)}
        groups = {group.label: group for group in cache.groups(list(settings.values()), seeds)}
        return {point: groups[setting.label] for point, setting in settings.items() if setting.label in groups}

    def of_scale(self, cache: RunCache) -> Sequence[int]:
        return self.seeds[: self.smoke_seeds] if self.scales and cache.scale == "smoke" else self.seeds

    def best(self, cache: RunCache, score: Callable[[Group], Any]) -> dict[Point, Group]:
        """Point at the best value of the tuned axis -> its runs; not of cells without the runs of all values."""
        every = [point.without(self.tuned) for point in self.points(cache.scale)]
        chosen = []
        for cell, tried in by(self.groups(cache, seeds=self.seeds[:1]), self.tuned).items():
            if len(tried) == every.count(cell):
                scores = {value: score(group) for value, group in tried.items()}
                chosen.append(cell.but(**{self.tuned: max(scores, key=scores.__getitem__)}))
        return self.groups(cache, chosen) if chosen else {}

    def measure(self, run: RunRecord, name: str) -> float | None:
        row = run.summary.get("measures")
        return self.measures[name](run) if row is None else row[name]

    def headline(self, point: Point, row: Row) -> tuple[str, float | None, float | None]:
        """The number of a published run in the tables: its name, its value, and the paper's."""
        return row.metric, last_value(row), None

    def whole(self) -> int | None:
        if not self.choices:
            return None
        points = self.points("paper")
        return len(points) + (len(self.seeds) - 1) * len({point.without(self.tuned) for point in points})

    def place(self, point: Point) -> str:
        """The name of a point's cell, at all values of the tuned axis."""
        return self.label(point.without(self.tuned))

    def lacks(self, row: Row) -> list[str]:
        """The measures and curves that a row is too old to have."""
        return [name for name in (*self.measures, *self.curves) if name not in row.measures | row.curves]

    def missing(self, rows: Sequence[Row]) -> list[str]:
        older = list(dict.fromkeys(name for row in rows for name in self.lacks(row)))
        text = f"its rows are older than numbers that it reads now ({', '.join(older[:4])}): make the runs again"
        return [*([text] if older else []), *(self._lacking_cells(rows) if self.choices else [])]

    def _lacking_cells(self, rows: Sequence[Row]) -> list[str]:
        """What cells lack, each thing with the names of these cells: all runs, values of the tuned axis, or seeds."""
        points = [(point, self.cell(point)) for point in self.points("paper")]
        axes = [axis for axis in points[0][1] if axis in points[0][0] and axis != self.tuned]

        def key(cell: Mapping[str, Any]) -> tuple[str, ...]:
            return tuple(plain(cell[axis]) for axis in axes)

        names = {key(cell): self.place(point) for point, cell in points}
        values, tried, seeds = (defaultdict[Any, set[Any]](set) for _ in range(3))
        for _, cell in points:
            values[key(cell)].add(cell.get(self.tuned))
        for row in rows:
            tried[key(row.cell)].add(row.cell.get(self.tuned))
            seeds[key(row.cell)].add(row.seed)
        lacking: dict[str, list[str]] = {"no run": []}
        for place, name in names.items():
            if not tried[place]:
                lacking["no run"].append(name)
            elif values[place] - tried[place]:
                lacking.setdefault(f"not all values of {self.tuned}", []).append(name)
            elif len(seeds[place]) < len(self.seeds):
                lacking.setdefault(f"{len(seeds[place])} of {len(self.seeds)} seeds", []).append(name)
        texts = {what: "; ".join(cells) for what, cells in lacking.items() if cells}
        many = {what: f"{len(cells)} of {len(names)} cells" for what, cells in lacking.items() if len(cells) > MOST}
        return [f"{what} of {text}" for what, text in (texts | many).items()]


def by(groups: Mapping[Point, T], axis: str, outer: str = "") -> dict[Any, dict[Any, T]]:
    """Point without this axis, or its value of the axis `outer` -> value of the axis -> entry."""
    out: dict[Any, dict[Any, T]] = {}
    for point, entry in groups.items():
        out.setdefault(point[outer] if outer else point.without(axis), {})[point[axis]] = entry
    return out
