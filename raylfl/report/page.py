"""`raylfl report`: a self-contained HTML page about run directories, with every figure and table also as a file."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raylfl.diagnostics.metric_names import Better, check_target, direction
from raylfl.errors import BadConfig, BadValue, did_you_mean
from raylfl.report import derived, figures, tables
from raylfl.report.derived import Facet, by_method, default_last, default_target, facets, grows, longest, main_metric
from raylfl.report.figures import Look, overview
from raylfl.report.pictures import graph_pictures, participation_pictures, partition_drawer, partition_pictures
from raylfl.report.runs import Group, Paths, RunRecord, Runs, group_runs, paths_of, read_runs
from raylfl.report.selection import select
from raylfl.report.sheet import Part, Sheet, folded, heading, slug
from raylfl.report.statistics import paired
from raylfl.report.style import method_styles, rc
from raylfl.report.tables import ReportTable
from raylfl.report.wording import last_text, metric_name, target_text
from raylfl.runtime.records import sources
from raylfl.runtime.records.files import require_inside

MAX_DETAILED = 3  # largest number of scenarios whose diagnostics are drawn; with more, only the leading curves are


@dataclass(frozen=True)
class Content:
    """The runs of a report, and the choices that all its figures and tables share.

    left_out: one sentence on each run that cannot be read. groups: the runs pooled by setting. parts: the groups by
    scenario. columns: the columns of the summary table that the user has chosen, by their keys; empty: all.
    """

    runs: Sequence[RunRecord]
    left_out: Sequence[str]
    groups: Sequence[Group]
    parts: Sequence[Facet]
    look: Look
    columns: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The names of the experiments and sweeps to which the runs belong."""
        return list(dict.fromkeys(str(run.config.get("name", run.path.parent.name)) for run in self.runs))

    @property
    def title(self) -> str:
        first, *more = self.names
        return f"{first} and {len(more)} more" if more else first

    @property
    def shown(self) -> list[Facet]:
        """The settings of each scenario that curves and paired differences show, see `Facet.best`."""
        return [part.best(self.look.metric, self.look.last)[0] for part in self.parts]

    def summary(self, parts: Sequence[Facet], name: str = "summary") -> ReportTable:
        """The summary table of these settings, with its file name."""
        return tables.summary(parts, self.look.metric, last=self.look.last, target=self.look.target, name=name)

    def chosen(self, summary: ReportTable) -> ReportTable:
        """The summary table with the chosen columns, in their order. Raises BadValue for an unknown column."""
        if not self.columns:
            return summary
        known = {column.key: column for column in summary.columns}
        for key in self.columns:
            if key not in known:
                need = f"some of {', '.join(known)}"
                raise BadValue("columns", got=",".join(self.columns), need=need, hint=did_you_mean(key, known))
        return replace(summary, columns=[known[key] for key in self.columns])

    def paired(self) -> ReportTable | None:
        """The table of paired differences; None if there are no pairs to compare."""
        return paired(self.shown, self.look.metric, self.look.last)


def content_of(
    paths: Paths,
    target: float | None = None,
    last: int | None = None,
    metric: str | None = None,
    theory: bool = False,
    better: Better | None = None,
    where: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> Content:
    """Reads the runs of a report, checks its choices and fills in defaults.

    paths: run directories, or directories that contain some. target: target of the main metric, a fraction for
    accuracies (None: `default_target`). last: the number of final rounds over which values are averaged (None:
    `default_last`; 0: each run counts with its best round). metric: the main metric (None: `main_metric`). theory:
    whether bounds from theorems are drawn beside the curves. better: the better direction of the main metric (None: as
    stated in the runs' configs, or known). where: conditions that the runs must meet (`selection.condition`). columns:
    the keys of the columns of the summary table, in order (empty: all). Raises BadConfig if there is no readable run
    (BadValue for a path without runs), and BadValue for a bad choice, such as a metric that no run has measured.
    """
    runs, left_out = read_runs(paths)
    runs = select(runs, where)
    if not runs:
        raise BadConfig(f"no run meets --where {' --where '.join(where)}")
    groups, metric = group_runs(runs), metric or main_metric(runs)
    measured = figures.measured_in(groups)
    if measured:
        figures.require_measured(metric, measured)
    if last is not None and last < 0:
        raise BadValue("last", got=last, need="at least 1 round, or 0 for each run's best round")
    check_target(target, metric)
    if better is None:
        if not any(direction(metric, run.directions) for run in runs):
            raise BadValue(
                "metric",
                got=metric,
                need="a metric that is known to be better high or low",
                hint=f"state it: --better max (or min), and in the config of later runs metrics={{{metric}: max}}",
            )
        better = "max" if grows(groups, metric) else "min"
    for run in runs:  # also for those that do not state it
        run.directions[metric] = better
    promises = None
    if theory:
        from raylfl.report.promised import promises_of

        promises = promises_of(groups, measured)
    target = default_target(groups, metric) if target is None else target
    last = default_last(groups) if last is None else last
    look = Look(metric, last, target, method_styles(list(by_method(groups))), promises)
    content = Content(runs, left_out, groups, facets(groups), look, tuple(columns))
    content.chosen(content.summary(content.parts))
    return content


def write_report(runs: Runs, out_dir: str | os.PathLike[str] = "report", *, pdf: bool = True, **choices: Any) -> Path:
    """Writes `index.html`, `report.png` and every figure and table into out_dir; returns the path of the page.

    runs: one run or several: directories, results of `raylfl.run`, or runs of `raylfl.load`. pdf: whether figures are
    also saved as PDF, which doubles the time. choices (`metric`, `target`, `last`, `theory`, `better`, `where`,
    `columns`) and errors: as in `content_of`.
    """
    return write_page(content_of(paths_of(runs), **choices), out_dir, pdf)


def write_page(content: Content, out_dir: str | os.PathLike[str], pdf: bool = True) -> Path:
    """Writes the page of a report. Raises BadConfig if a symbolic link in `out_dir` or its run leads out of it."""
    runs, groups, parts, look = content.runs, content.groups, content.parts, content.look
    folder = Path(out_dir).absolute()
    for root in {folder, *(run.path.absolute() for run in runs if folder.is_relative_to(run.path.absolute()))}:
        require_inside(root)
    sheet = Sheet(Path(out_dir), pdf)
    with rc():
        summary = _summary(sheet, content)
        sheet.section("curves", "Curves", [p for part in parts for p in _scenario(sheet, part, parts, look)])
        best = sheet.table(tables.best_settings(parts, look.metric, look.last))
        sheet.section("tuning", "Tuning", best + _profiles(sheet, groups, look, derived.tuned_keys(groups)))
        sheet.section("heterogeneity", "Heterogeneity", _profiles(sheet, groups, look, derived.scenario_keys(groups)))
        graphs = sheet.table(tables.link_table(groups)) + sheet.pictures(graph_pictures(groups, look.metric))
        sheet.section("graphs", "Graphs", graphs)
        pictures = [*partition_pictures(groups), *participation_pictures(groups)]
        sheet.section("clients", "Clients", sheet.pictures(pictures))
        sheet.section("setup", "Set-up", _setup(sheet, runs, groups))
        picture = overview(parts[0], look, summary, content.title, partition_drawer(parts[0].groups))
        if picture is not None:
            picture.savefig(sheet.new("report.png"))
    refused = look.promises.refused if look.promises else ()
    return sheet.write(content.title, _facts(groups, look), [*content.left_out, *_notes(runs, groups), *refused])


def shown_tables(content: Content) -> list[ReportTable]:
    """The tables for the terminal: summary of all settings, paired differences, and traffic between clients."""
    more = content.paired(), tables.link_table(content.groups)
    return [content.chosen(content.summary(content.parts)), *(table for table in more if table is not None)]


def _summary(sheet: Sheet, content: Content) -> ReportTable:
    """Adds the section with the summary table of the shown settings, and folded that of all settings."""
    summary = content.summary(content.shown)
    shown = sheet.table(content.chosen(summary))
    if len(content.groups) > len(summary.rows):
        full = content.summary(content.parts, name="settings")
        by = f"Where a method has many settings, its best by {last_text(content.look.last)} is shown."
        shown += [{"kind": "text", "text": by}]
        shown += folded(f"All {len(content.groups)} settings", sheet.table(content.chosen(full)))
    pairs = sheet.table(content.paired())
    shown += [*heading("Paired differences"), *pairs] if pairs else []
    sheet.section("summary", "Summary", shown)
    return summary


def _scenario(sheet: Sheet, part: Facet, parts: Sequence[Facet], look: Look) -> list[Part]:
    suffix = f"_{slug(part.label)}" if part.label else ""
    shown = heading(part.label) + sheet.block(figures.convergence(part, look), suffix)
    shown += sheet.block(figures.costs(part, look), suffix)
    more = figures.diagnostics(part, look) if len(parts) <= MAX_DETAILED else None
    return shown + folded("Other measurements", sheet.block(more, suffix))


def _profiles(sheet: Sheet, groups: Sequence[Group], look: Look, keys: Sequence[str]) -> list[Part]:
    shown = {key: sheet.block(figures.profile(groups, look, key)) for key in keys}
    return [part for key, parts in shown.items() if parts for part in heading(key) + parts]


def _setup(sheet: Sheet, runs: Sequence[RunRecord], groups: Sequence[Group]) -> list[Part]:
    different = sheet.table(tables.differences(groups))
    return [
        *(heading("Differences") if different else []),
        *different,
        *folded("Configuration", sheet.table(tables.common(groups))),
        *folded("Environment", sheet.table(tables.environment(runs))),
        *folded("Runs", sheet.table(tables.run_list(groups))),
    ]


def _facts(groups: Sequence[Group], look: Look) -> list[tuple[str, str]]:
    seeds = sorted({len(group.runs) for group in groups})
    methods = len(by_method(groups))
    entries = [
        ("runs", str(sum(len(group.runs) for group in groups))),
        ("settings", f"{len(groups)} ({methods} method{'s' * (methods > 1)})"),
        ("seeds", str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"),
        ("rounds", str(longest(groups))),
        ("main metric", metric_name(look.metric)),
    ]
    if look.target is not None:
        goal = target_text(look.metric, look.target, grows(groups, look.metric))
        entries.append(("target", goal.removeprefix(metric_name(look.metric)).strip()))
    return entries


def _source_notes(runs: Sequence[RunRecord]) -> list[str]:
    """Notes on modules of the user whose source differs between the runs, or has changed since a run."""
    saved = {run.path.name: sources.read(run.path) for run in runs}
    digests = {(name, one["sha256"]) for of_run in saved.values() for name, one in of_run.items()}
    mixed = [name for name, count in Counter(name for name, _ in sorted(digests)).items() if count > 1]
    notes = [f"The source of {', '.join(mixed)} differs between these runs."] if mixed else []
    moved: dict[str, list[str]] = {}
    for name, of_run in saved.items():
        if changed := sources.changed_names(of_run, sources.today(of_run)):
            moved.setdefault(", ".join(changed), []).append(name)
    for classes, names in moved.items():
        notes.append(f"The source of {classes} has changed since {len(names)} of {len(runs)} runs ({_some(names)}).")
    return notes


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")


def _notes(runs: Sequence[RunRecord], groups: Sequence[Group]) -> list[str]:
    notes = []
    for state, effect in (("unfinished", "their curves end early"), ("diverged", "they count as worse than any other")):
        if names := [run.path.name for run in runs if run.state == state]:
            notes.append(f"{state.capitalize()}: {len(names)} of {len(runs)} runs ({_some(names)}); {effect}.")
    notes += [f"{run.path.name} is damaged: {fault}." for run in runs for fault in run.faults]
    if repeated := len(runs) - sum(len(group.runs) for group in groups):
        notes.append(f"Runs that repeat a seed of the same setting and are left out: {repeated}.")
    notes += _source_notes(runs)
    if not any(len(run.rounds) for run in runs):
        notes.append("No run has finished a round yet.")
    return notes
