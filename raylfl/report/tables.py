"""The tables of a report as data: rows are dicts; columns define heading, format and which value is best.

`raylfl.report.render` renders tables as Markdown, LaTeX, CSV, HTML and for the terminal.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from raylfl.config.identity import flatten
from raylfl.report import derived, wording
from raylfl.report.derived import AXES, BEST, Facet, Stat, by_method, cost, grows, last_k
from raylfl.report.labels import canonical, display, short_keys, show_value, varying
from raylfl.report.runs import Group, RunRecord
from raylfl.report.wording import axis_name, cost_text, last_text, metric_name, number, stat_text, target_text

NODE = "cost/busiest_node_floats"
ENVIRONMENT = ("versions", "git_commit", "host", "runtime", "command")  # keys of summary.json


@dataclass(frozen=True)
class Column:
    """One column of a table: its key in the rows, its heading, and the conversion `show` of a cell's value to text.

    better: which value is highlighted as best, `max` or `min`; None: no value is highlighted. numeric: whether the
    cells are numbers, which are aligned to the right.
    """

    key: str
    head: str
    show: Callable[[Any], str] = str
    better: str | None = None
    numeric: bool = False


KEY_VALUE = [Column("key", "key"), Column("value", "value")]


@dataclass(frozen=True)
class ReportTable:
    """A table: its file name without ending, its caption, its columns, and one dict (column key -> value) per row.

    Rows may have an entry `block`: rows with the same block form a group with this heading, and the best value of a
    column is determined within the group.
    """

    name: str
    caption: str
    columns: list[Column]
    rows: list[dict[str, Any]]

    def blocks(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each block by its heading; rows without an entry `block` have the heading ""."""
        parts: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            parts.setdefault(str(row.get("block", "")), []).append(row)
        return parts

    def best_in(self, rows: Sequence[dict[str, Any]], column: Column) -> float | None:
        """The best value of a column among these rows; None for a single row, or if the column has no best value."""
        values = [rank(row.get(column.key)) for row in rows]
        finite = [value for value in values if math.isfinite(value)]
        if column.better is None or len(rows) < 2 or not finite:
            return None
        return max(finite) if column.better == "max" else min(finite)

    def cells(self) -> Iterator[tuple[str, list[list[tuple[str, bool]]]]]:
        """The cells of each block as (heading, rows of (text, whether it is the best value of its column))."""
        for heading, rows in self.blocks().items():
            best = [(column, self.best_in(rows, column)) for column in self.columns]
            yield (
                heading,
                [
                    [(c.show(row[c.key]) if c.key in row else "", rank(row.get(c.key)) == value) for c, value in best]
                    for row in rows
                ],
            )


def rank(value: Any) -> float:
    """The value of a cell as a number for comparison; nan for a text, and for a statistic that lacks some seeds."""
    if isinstance(value, Stat):
        return value.mean if value.count and value.count >= value.of else math.nan
    return float(value) if isinstance(value, int | float) else math.nan


def summary(
    parts: Sequence[Facet], metric: str, *, last: int, target: float | None, name: str = "summary"
) -> ReportTable:
    """The summary table, one row per setting: mean +- std over the last rounds, final, best, and costs to the target.

    The first statistic is over all values of the last rounds of all seeds (BEST: the best values), others over seeds.
    """
    groups = [group for part in parts for group in part.groups]
    higher = grows(groups, metric)
    better, value = "max" if higher else "min", partial(stat_text, metric=metric)
    columns = [
        Column("setting", "setting"),
        Column("seeds", "seeds", numeric=True),
        Column("length", "rounds", numeric=True),
        Column("last", f"{axis_name(metric)}, {wording.last_head(last)}", value, better, numeric=True),
        Column("final", "final", value, better, numeric=True),
    ]
    columns += [] if last == BEST else [Column("best", "best", value, better, numeric=True)]
    costs = [] if target is None else derived.counted_axes([run for group in groups for run in group.runs])
    columns += [Column(axis, f"{AXES[axis].head} to target", cost_text, "min", numeric=True) for axis in costs]
    rows = []
    for part in parts:
        for group in part.groups:
            states = Counter(run.state for run in group.runs if run.state != "finished")
            ends = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            row: dict[str, Any] = {
                "block": part.label,
                "setting": part.names[group],
                "seeds": str(len(group.runs)) + (f" ({ends})" if ends else ""),
                "length": max(len(run.rounds) for run in group.runs),
                "last": last_k(group, metric, last),
                "final": derived.final(group, metric),
                "best": derived.best(group, metric),
            }
            if target is not None:
                row |= {axis: derived.group_to_target(group, metric, target, axis) for axis in costs}
            rows.append(row)
    words = metric_name(metric)
    caption = f"{words[0].upper()}{words[1:]}, mean ± std: over {last_text(last)} and seeds (pooled); "
    caption += "final and best over seeds."
    if 0 < (most := derived.longest(groups)) < last:
        caption += f" No run has more than {most} rounds, so that the mean is over all of them."
    if target is not None:
        caption += f" Target: {target_text(metric, target, higher)}."
    return ReportTable(name, caption, columns, rows)


def best_settings(parts: Sequence[Facet], metric: str, last: int) -> ReportTable | None:
    """The table of the best tuned options of every method in every scenario; None if no method was tuned."""
    groups = [group for part in parts for group in part.groups]
    keys = derived.tuned_keys(groups)
    if not keys:
        return None
    names = short_keys(keys, {key for part in parts for group in part.groups for key in group.setting})
    rows = []
    for part in parts:
        for method, own in by_method(part.groups).items():
            winner = derived.best_setting(own, metric, last)
            row = {"block": part.label, "method": display(method), "tried": len(own)}
            row |= {key: show_value(winner.setting[key]) if key in winner.setting else "–" for key in keys}
            rows.append(row | {"last": last_k(winner, metric, last)})
    columns = [Column("method", "method"), Column("tried", "tried", numeric=True)]
    columns += [Column(key, f"best {names[key]}", numeric=True) for key in keys]
    better = "max" if grows(groups, metric) else "min"
    head = f"{axis_name(metric)}, {wording.last_head(last)}"
    columns.append(Column("last", head, partial(stat_text, metric=metric), better, numeric=True))
    caption = f"Best tuning of each method by its mean over seeds and {last_text(last)}."
    return ReportTable("best_settings", caption, columns, rows)


def differences(groups: Sequence[Group]) -> ReportTable | None:
    """The table of config keys that differ between settings, one row per setting; None if no key differs."""
    keys = varying([group.setting for group in groups])
    if not keys:
        return None
    columns = [Column("setting", "setting"), *(Column(key, key) for key in keys)]
    rows = [
        {"setting": group.label}
        | {key: show_value(group.setting[key]) if key in group.setting else "–" for key in keys}
        for group in groups
    ]
    return ReportTable("differences", "Keys in which the configs differ; all other keys agree.", columns, rows)


def common(groups: Sequence[Group]) -> ReportTable:
    """The table of config keys with the same value in all settings."""
    differ = set(varying([group.setting for group in groups]))
    shared = {key: value for key, value in groups[0].setting.items() if key not in differ}
    rows = [{"key": key, "value": show_value(value)} for key, value in shared.items()]
    return ReportTable("config", "Keys that all settings share.", KEY_VALUE, rows)


def environment(runs: Sequence[RunRecord]) -> ReportTable | None:
    """The table of ENVIRONMENT in the runs' summary.json, up to three values each; None if no run has finished."""
    values: dict[str, dict[str, str]] = {}
    for run in runs:
        for key, value in flatten({key: run.summary[key] for key in ENVIRONMENT if key in run.summary}).items():
            values.setdefault(key, {})[canonical(value)] = show_value(value)
    if not values:
        return None
    rows = []
    for key, seen in values.items():
        more = f" … ({len(seen)} values)" if len(seen) > 3 else ""
        rows.append({"key": key, "value": "; ".join([*seen.values()][:3]) + more})
    return ReportTable("environment", "Versions and machines of the finished runs.", KEY_VALUE, rows)


def run_list(groups: Sequence[Group]) -> ReportTable:
    """The table of all runs: directory, setting, seed, rounds done and planned, state, real seconds."""
    runs = [run for group in groups for run in group.runs]
    top = os.path.commonpath([run.path.resolve().parent for run in runs])
    rows = []
    for group in groups:
        for run in group.runs:
            done, planned = len(run.rounds), run.config.get("rounds", "?")
            seconds = float(sum(value for value in run.column("time/round") if math.isfinite(value)))
            row = {"run": os.path.relpath(run.path.resolve(), top), "setting": group.label, "seed": run.seed}
            rows.append(row | {"rounds": f"{done} of {planned}", "state": run.state, "seconds": seconds or math.nan})
    columns = [
        Column("run", "run"),
        Column("setting", "setting"),
        Column("seed", "seed", numeric=True),
        Column("rounds", "rounds", numeric=True),
        Column("state", "state"),
        Column("seconds", "real seconds", number, numeric=True),
    ]
    return ReportTable("runs", "The runs behind this report.", columns, rows)


def link_table(groups: Sequence[Group]) -> ReportTable | None:
    """The table of traffic, one row per setting (its first seed); None if no client sends to another client."""
    if not derived.between_clients([group.runs[0] for group in groups]):
        return None
    columns = [
        Column("setting", "setting"),
        Column("floats", "floats sent", number, "min", numeric=True),
        Column("seconds", "virtual s", number, "min", numeric=True),
        Column("node", "busiest node's floats", number, "min", numeric=True),
        Column("link", "busiest link"),
        Column("carried", "its floats", number, "min", numeric=True),
    ]
    caption = (
        "Traffic of each setting, from its first seed. Busiest node: of each round; busiest link: of the whole run, "
        "both directions together (edges.csv has all links)."
    )
    return ReportTable("links", caption, columns, [{"setting": g.label, **_traffic(g.runs[0])} for g in groups])


def _traffic(run: RunRecord) -> dict[str, Any]:
    """The entries of the row of a run: column -> value. Quantities that the run has not recorded are left out."""
    totals = {"floats": cost(run, "floats"), "seconds": cost(run, "virtual"), "node": run.metrics.get(NODE)}
    row: dict[str, Any] = {
        key: float(values[-1]) for key, values in totals.items() if values is not None and len(values)
    }
    found = run.summary.get("busiest_link")
    try:
        ends, floats = found["between"], float(found["floats"])  # type: ignore[index]
        return {**row, "link": " – ".join(map(str, ends)), "carried": floats}
    except (TypeError, KeyError, ValueError):  # the run is unfinished, damaged, or older than this record
        return row
