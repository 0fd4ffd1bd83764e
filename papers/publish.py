"""The command `raylfl publish`: adds finished runs to the ledger and regenerates all that is computed from it.

The ledger of an experiment is `results/EXPERIMENT/runs.jsonl`; tables, verdicts, figures and pages are computed from
it. Only runs of `raylfl reproduce` are published: at scale `paper`, or of an experiment without scales. An experiment
whose cells can be selected by `--only` may be published in part; all others must be complete. An experiment that
implements `from_ledger`, or has `from_rows`, can also be published without its runs, from the rows that the ledger has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raylfl.console import say
from raylfl.errors import BadConfig
from raylfl.report.runs import RunRecord, find_runs, is_run, load_run
from papers.base import PaperResult, find
from papers.choice import plain
from papers.command import place, write
from papers.gallery import write_pages
from papers.ledger import Row, add, check_complete, read, replaced, row
from papers.ledger_rows import LedgerRows
from papers.own_setting import NO_CELL, decisive, differences, resolved
from papers.run_cache import Job, RunCache, is_done
from raylfl.runtime.records.summary import versions

RESULTS, DOCS = Path("results"), Path("docs")
DPI = 100  # resolution of pictures in the repository
MOST = 5  # runs with other settings that are named
IMAGES = "data.init_args.path="  # in a command, before the path of images
OTHERWISE = "its seed, its runtime options or the name of its folder are not those of the experiment's runs"


def publish(
    targets: Sequence[str], to: str | None = None, results: Path = RESULTS, docs: Path = DOCS, tell: Any = say
) -> None:
    """Add experiments (by name) or single runs (by directory) to the ledger, and regenerate the pages about them.

    to: the experiment to which run directories belong. results, docs: the folders of the ledgers and of the pages.
    tell: called with lines of progress. Raises BadConfig for an incomplete run; nothing of its experiment is then
    written. A run that has another setting than its cell is left out, and a line says so. Raises BadConfig if this
    leaves no run.
    """
    for target in targets:
        path = Path(target)
        if is_run(path):
            name, experiment = _experiment_of(path, to)
            runs = [load_run(path)]
        else:
            name, experiment = target, find(target)
            runs = finished(name, experiment)
        folder = results / name
        alone = experiment.stands_alone or (experiment.from_rows and not runs)
        cache = None if alone else _finished_runs(name, experiment, _images(runs))
        findings = experiment.run(cache) if cache else None
        cells, strange = _own_cells(name, experiment, runs, cache)
        if strange and not cells:
            raise BadConfig(strange)
        for line in [*strange[:MOST], *([f"and {len(strange) - MOST} more runs"] if len(strange) > MOST else [])]:
            tell(f"left out  {line}")
        rows = [row(run, cell, _command(name, experiment, cell, run), experiment.measures(run)) for run, cell in cells]
        if alone and not rows and not read(folder):
            raise BadConfig(f"{target}: no finished runs; `raylfl reproduce {name}` makes them")
        for line in [*_other_versions(rows), *replaced(folder, rows)]:
            tell(f"{name}  {line}")
        changed = add(folder, rows)
        if experiment.from_rows:
            findings = experiment.run(LedgerRows(experiment, read(folder)))
        elif findings is None:
            findings = experiment.from_ledger(folder)
        write(folder, findings, [*findings.notes, *_image_notes(read(folder))], DPI)
        tell(f"{name}  {changed} rows new or changed, {len(rows)} runs checked")
    for page in write_pages(results, docs):
        tell(f"written  {page}")


def _other_versions(rows: Sequence[Row]) -> list[str]:
    """One line for each version of raylfl that made some of the rows and is not the installed version."""
    made = Counter(row.versions.get("raylfl", "unknown") for row in rows)
    own = versions()["raylfl"]
    return [f"{count} runs are of raylfl {other}; this is {own}" for other, count in made.items() if other != own]


class FinishedRuns(RunCache):
    """A cache that makes no runs and raises BadConfig if a run is missing.

    With `in_part`, missing runs are left out if at least one run exists. `wanted`: folder -> job, for
    all runs that were looked for. Raises BadConfig for an incomplete run.
    """

    in_part = False

    def __init__(self, *options: Any, **more: Any):
        super().__init__(*options, **more)
        self.wanted: dict[Path, Job] = {}

    def _carry_out(self, jobs: Mapping[Path, Job]) -> None:
        self.wanted |= jobs
        for job in jobs.values():
            if job.done:
                check_complete(load_run(job.path))
        missing = [job.label for job in jobs.values() if not job.done]
        if missing and not (self.in_part and len(missing) < len(jobs)):
            raise BadConfig(f"{len(missing)} runs are missing ({missing[0]}, ...); `raylfl reproduce` makes them")


def finished(name: str, experiment: PaperResult) -> list[RunRecord]:
    """The runs of an experiment that have finished or diverged."""
    folder = _runs(name, experiment) / "runs"
    paths = find_runs([folder]) if folder.is_dir() else []
    return [load_run(path) for path in paths if is_done(path)]


def _runs(name: str, experiment: PaperResult) -> Path:
    return place(experiment.shares or name, experiment, "paper")


def _finished_runs(name: str, experiment: PaperResult, images: str | None) -> FinishedRuns:
    """A cache of the finished runs of an experiment.

    images: the path of the images that the runs have in place of the experiment's data set, or None (`_images`).
    """
    scale = "paper" if experiment.scales else "smoke"  # experiments without scales are always run in full
    data = ["data=image_folder", f"{IMAGES}{images}"] if images else []
    cache = FinishedRuns(place(name, experiment, scale), scale, data, runs=_runs(name, experiment))
    cache.in_part = bool(experiment.choices)
    return cache


def _images(runs: Sequence[RunRecord]) -> str | None:
    """The path of the images that these runs have in place of the experiment's own data set; None if they have none.

    Raises BadConfig if the runs differ in it.
    """
    data = [run.config["data"] for run in runs]
    found = {own["init_args"]["path"] if own["name"] == "image_folder" else None for own in data}
    if len(found) > 1:
        told = ", ".join(sorted(path or "the experiment's own data set" for path in found))
        raise BadConfig(f"the runs have different data: {told}; keep those of one data set in the folder of runs")
    return found.pop() if found else None


def _image_notes(rows: Sequence[Row]) -> list[str]:
    """A note on each file of images that runs have in place of the experiment's own data set, from their commands."""
    words = {word for row in rows for word in row.command.split()}
    names = sorted(word.removeprefix(IMAGES) for word in words if word.startswith(IMAGES))
    return [f"the images are those of {name}, in place of the experiment's own data set" for name in names]


def _own_cells(
    name: str, experiment: PaperResult, runs: Sequence[RunRecord], cache: FinishedRuns | None
) -> tuple[list[tuple[RunRecord, dict[str, Any]]], list[str]]:
    """The pairs (run, its cell) of runs with the setting of their cell, and one line on each run with another setting.

    cache: the cache that has looked for all runs of the experiment; None for an experiment whose runs can be published
    singly (`stands_alone`). Runs that belong to no cell are left out.
    """
    own, strange = [], []
    wanted = {path: decisive(job.config) for path, job in cache.wanted.items()} if cache else {}
    for run in runs:
        config = resolved(run)
        cell = experiment.cell(config, run.path.name)
        if cell is None:
            continue
        if cache:
            fault = "" if run.path.resolve() in wanted else differences(config, wanted.values()) or OTHERWISE
        else:
            check_complete(run)
            fault = differences(config, _setting_of(name, experiment, cell, run))
        if fault:
            remedy = (
                "" if fault == NO_CELL else f"; `{_command(name, experiment, cell, run)}` makes the run of its cell"
            )
            strange.append(f"{run.path.name} has not the setting of {name}: {fault}{remedy}")
        else:
            own.append((run, cell))
    return own, strange


def _setting_of(name: str, experiment: PaperResult, cell: Mapping[str, Any], run: RunRecord) -> list[dict[str, Any]]:
    """A list of the `decisive` keys of the cell's setting with the run's seed and images; empty without such a cell."""
    cache = _finished_runs(name, experiment, _images([run]))
    setting = experiment.cell_setting(cell, cache.scale)
    return [decisive(cache.config_of(setting, run.config["seed"]))] if setting else []


def _experiment_of(path: Path, to: str | None) -> tuple[str, PaperResult]:
    if to is None:
        raise BadConfig(f"{path} is a run: give its experiment with --to")
    experiment = find(to)
    if not experiment.stands_alone:
        raise BadConfig(f"--to {to}: its runs belong together; publish {to} as a whole")
    run = load_run(path)
    if experiment.cell(resolved(run), run.path.name) is None:
        raise BadConfig(f"--to {to}: {path.name} is none of its cells (other data, model, partition or method)")
    return to, experiment


def _command(name: str, experiment: PaperResult, cell: dict[str, Any], run: RunRecord) -> str:
    words = ["raylfl reproduce", name, *(["--scale paper"] if experiment.scales else [])]
    values = cell | {"seed": run.config["seed"]}
    words += [f"--only {key}={plain(values[key])}" for key in experiment.choices if key in values]
    if images := _images([run]):
        words += ["data=image_folder", f"{IMAGES}{Path(images).name}"]
    return " ".join(words)
