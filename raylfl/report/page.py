"""`raylfl report`: a self-contained HTML page about run directories, with every figure and table also as a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from raylfl.errors import BadValue
from raylfl.report import figures, tables
from raylfl.report.derived import by_method, default_last, default_target, main_metric
from raylfl.report.facets import Facet, facets
from raylfl.report.figures import Block, Look
from raylfl.report.graph_pictures import graph_pictures
from raylfl.report.link_table import link_table
from raylfl.report.overview import overview
from raylfl.report.paired import paired
from raylfl.report.pictures import participation_pictures, partition_drawer, partition_pictures
from raylfl.report.runs import Group, RunRecord, group_runs, read_runs
from raylfl.report.sheet import Part, Sheet, folded, heading, slug
from raylfl.report.style import method_styles, rc
from raylfl.report.tables import Table
from raylfl.report.wording import metric_name, target_text

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
MAX_DETAILED = 3  # largest number of worlds whose diagnostics are drawn; with more worlds, only the leading curves are


def write_report(
    paths: Paths,
    out_dir: str | os.PathLike[str],
    target: float | None = None,
    last: int | None = None,
    title: str | None = None,
    *,
    metric: str | None = None,
    window: int | None = None,
    band: str = "minmax",
    pdf: bool = True,
    theory: bool = False,
) -> Path:
    """Writes `index.html`, `report.png` and every figure and table into out_dir; returns the path of the page.

    paths: run directories, or directories that contain some. target: target of the main metric, a fraction for
    accuracies (None: `default_target`). last: the number of final rounds over which values are averaged (None:
    `default_last`). metric: the main metric (None: `main_metric`). window: measured rounds in the moving average, 1 for
    no smoothing (None: `default_window`). band: `minmax` or `std` over seeds. pdf: figures also as PDF, which doubles
    the time. theory: bounds from theorems as lines beside the curves.
    Raises BadConfig if there is no readable run (BadValue for a path without runs), and BadValue for a bad argument,
    such as a metric that no run has measured.
    """
    runs, left_out = read_runs(paths)
    groups, look = _look(runs, target, last, metric, window, band)
    if theory:
        from raylfl.report.promised import promises_of

        look = replace(look, promises=promises_of(groups, figures.measured_in(groups)))
    title = title or _title(runs)
    parts = facets(groups)
    sheet = Sheet(Path(out_dir), pdf)
    with rc():
        summary = _summary(sheet, parts, look)
        sheet.section("curves", "Curves", [p for part in parts for p in _world(sheet, part, parts, look)])
        best = sheet.table(tables.best_settings(parts, look.metric, look.last))
        sheet.section("tuning", "Tuning", best + _titled(sheet, figures.tuning(groups, look)))
        trends = sheet.block(figures.heat_map(parts, look)) + _titled(sheet, figures.trends(groups, look))
        sheet.section("heterogeneity", "Heterogeneity", trends)
        sheet.section("graphs", "Graphs", _graphs(sheet, groups, look))
        pictures = [*partition_pictures(groups), *participation_pictures(groups)]
        sheet.section("clients", "Clients", sheet.pictures(pictures))
        sheet.section("setup", "Set-up", _setup(sheet, runs, groups))
        picture = overview(parts[0], look, summary, title, partition_drawer(parts[0].groups))
        if picture is not None:
            picture.savefig(sheet.folder / "report.png")
    refused = look.promises.refused if look.promises else ()
    return sheet.write(title, _facts(groups, look), [*left_out, *_notes(runs, groups), *refused])


def summary_table(paths: Paths) -> Table:
    """The summary table of all settings, with default target and rounds. Raises the errors of `write_report`."""
    return shown_tables(paths)[0]


def shown_tables(
    paths: Paths, target: float | None = None, last: int | None = None, metric: str | None = None
) -> list[Table]:
    """The summary, the paired differences and, if clients send to each other, the table of traffic.

    Arguments and errors: as in `write_report`. Unreadable runs are left out without a warning.
    """
    groups, look = _look(read_runs(paths, tell=lambda text: None)[0], target, last, metric, window=None, band="minmax")
    parts = facets(groups)
    summary = tables.summary(parts, look.metric, last=look.last, target=look.target)
    best = [part.best(look.metric, look.last)[0] for part in parts]
    more = paired(best, look.metric, look.last), link_table(groups)
    return [summary, *(table for table in more if table is not None)]


def _look(
    runs: Sequence[RunRecord],
    target: float | None,
    last: int | None,
    metric: str | None,
    window: int | None,
    band: str,
) -> tuple[list[Group], Look]:
    """Checks the choices of a report and fills in defaults; returns (runs pooled by setting, choices of all figures).

    Arguments as in `write_report`. Raises BadValue for a bad choice.
    """
    groups = group_runs(runs)
    metric = metric or main_metric(runs)
    measured = figures.measured_in(groups)
    if measured and metric not in measured:
        raise BadValue("metric", got=metric, need=f"one that was measured: {', '.join(measured)}")
    for key, value in (("last", last), ("window", window)):
        if value is not None and value < 1:
            raise BadValue(key, got=value, need="at least 1 round")
    if band not in {"minmax", "std"}:
        raise BadValue("band", got=band, need="minmax or std")
    last = last or default_last(groups)
    target = default_target(groups, metric) if target is None else target
    return groups, Look(metric, last, target, window, band, method_styles(list(by_method(groups))))


def _title(runs: Sequence[RunRecord]) -> str:
    names = list(dict.fromkeys(str(run.config.get("name", run.path.parent.name)) for run in runs))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _summary(sheet: Sheet, parts: Sequence[Facet], look: Look) -> Table:
    """Adds the section with the summary table to the page and returns that table.

    Its rows are the settings that the curves show. If these are not all settings, a second, folded table has all of
    them. parts: the settings of each world (data, model, participation, ...).
    """
    best = [part.best(look.metric, look.last)[0] for part in parts]
    summary = tables.summary(best, look.metric, last=look.last, target=look.target)
    shown = sheet.table(summary)
    total = sum(len(part.groups) for part in parts)
    if total > len(summary.rows):
        full = tables.summary(parts, look.metric, last=look.last, target=look.target, name="settings")
        shown += [{"kind": "text", "text": "Where a method has many settings, its best by the last-k mean is shown."}]
        shown += folded(f"All {total} settings", sheet.table(full))
    pairs = sheet.table(paired(best, look.metric, look.last))
    shown += [*heading("Paired differences"), *pairs] if pairs else []
    sheet.section("summary", "Summary", shown)
    return summary


def _world(sheet: Sheet, part: Facet, parts: Sequence[Facet], look: Look) -> list[Part]:
    """The curves of one world (data, model, participation, ...) for the page, and its other measurements, folded.

    part: the settings of this world. parts: all worlds; of more than MAX_DETAILED, only the curves are shown.
    """
    suffix = f"_{slug(part.label)}" if part.label else ""
    shown = heading(part.label) + sheet.block(figures.convergence(part, look), suffix)
    shown += sheet.block(figures.costs(part, look), suffix, legend=False)
    more = figures.diagnostics(part, look) if len(parts) <= MAX_DETAILED else None
    return shown + folded("Other measurements", sheet.block(more, suffix))


def _graphs(sheet: Sheet, groups: Sequence[Group], look: Look) -> list[Part]:
    """The table of traffic, the graphs of methods without a server, and tables of their nodes, folded."""
    drawn = graph_pictures(groups, look.metric)
    shown = sheet.table(link_table(groups)) + sheet.pictures([picture for picture, _ in drawn if picture is not None])
    return shown + [part for _, table in drawn for part in folded(table.caption, sheet.table(table))]


def _titled(sheet: Sheet, blocks: Sequence[Block]) -> list[Part]:
    return [part for block in blocks for part in heading(block.title) + sheet.block(block)]


def _setup(sheet: Sheet, runs: Sequence[RunRecord], groups: Sequence[Group]) -> list[Part]:
    """The tables of differing config keys, shared config keys, environment and runs; all but the first are folded."""
    different = sheet.table(tables.differences(groups))
    return [
        *(heading("Differences") if different else []),
        *different,
        *folded("Configuration", sheet.table(tables.common(groups))),
        *folded("Environment", sheet.table(tables.environment(runs))),
        *folded("Runs", sheet.table(tables.run_list(groups))),
    ]


def _facts(groups: Sequence[Group], look: Look) -> list[tuple[str, str]]:
    """The facts under the page's title, as (name, value): numbers of runs, seeds and rounds, main metric, target."""
    runs = [run for group in groups for run in group.runs]
    seeds = sorted({len(group.runs) for group in groups})
    methods = len(by_method(groups))
    entries = [
        ("runs", str(len(runs))),
        ("settings", f"{len(groups)} ({methods} method{'s' * (methods > 1)})"),
        ("seeds", f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"),
        ("rounds", str(max((int(run.rounds[-1]) + 1 for run in runs if len(run.rounds)), default=0))),
        ("main metric", metric_name(look.metric)),
    ]
    if look.target is not None:
        goal = target_text(look.metric, look.target).removeprefix(metric_name(look.metric)).strip()
        entries.append(("target", goal))
    return entries


def _notes(runs: Sequence[RunRecord], groups: Sequence[Group]) -> list[str]:
    """Warnings for the page: unfinished, damaged and repeated runs."""
    unfinished = [run.path.name for run in runs if not run.finished]
    repeated = len(runs) - sum(len(group.runs) for group in groups)
    notes = []
    if unfinished:
        names = ", ".join(unfinished[:4]) + (" …" if len(unfinished) > 4 else "")
        notes.append(f"Unfinished: {len(unfinished)} of {len(runs)} runs ({names}); their curves end early.")
    notes += [f"{run.path.name} is damaged: {fault}." for run in runs for fault in run.faults]
    if repeated:
        notes.append(f"Runs that repeat a seed of the same setting and are left out: {repeated}.")
    if not any(len(run.rounds) for run in runs):
        notes.append("No run has finished a round yet.")
    return notes
