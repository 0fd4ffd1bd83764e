"""The command `raylfl publish`: adds finished runs to the ledger and regenerates all that is computed from it.

The ledger of an experiment is `results/EXPERIMENT/runs.jsonl`; tables, verdicts, figures and pages are computed from
it. Only runs of `raylfl reproduce` are published: at scale `paper`, or of an experiment without scales. An experiment
whose cells can be selected by `--only` may be published in part; all others must be complete. An experiment that
implements `from_ledger` can also be published without its runs, from the rows that the ledger has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raylfl.console import say
from raylfl.errors import BadConfig
from raylfl.report.runs import RunRecord, find_runs, is_run, load_run
from raylfl.reproduce.base import PaperResult, find
from raylfl.reproduce.choice import plain
from raylfl.reproduce.command import place, write
from raylfl.reproduce.gallery import write_pages
from raylfl.reproduce.ledger import add, read, row
from raylfl.reproduce.run_cache import RunCache, is_done

RESULTS, DOCS = Path("results"), Path("docs")
DPI = 100  # resolution of pictures in the repository


def publish(
    targets: Sequence[str], to: str | None = None, results: Path = RESULTS, docs: Path = DOCS, tell: Any = say
) -> None:
    """Add experiments (by name) or single runs (by directory) to the ledger, and regenerate the pages about them.

    to: the experiment to which run directories belong. results, docs: the folders of the ledgers and of the pages.
    tell: called with lines of progress. Raises BadConfig for an incomplete run; nothing of its experiment is then
    written.
    """
    for target in targets:
        path = Path(target)
        if is_run(path):
            name, experiment = _experiment_of(path, to)
            runs = [load_run(path)]
        else:
            name, experiment = target, find(target)
            runs = finished(name, experiment)
        rows = [
            row(run, cell, _command(name, experiment, cell, run), experiment.measures(run))
            for run, cell in _cells(experiment, runs)
        ]
        folder = results / name
        if experiment.stands_alone and not rows and not read(folder):
            raise BadConfig(f"{target}: no finished runs; `raylfl reproduce {name}` makes them")
        images = None if experiment.stands_alone else _images(runs)
        findings = None if experiment.stands_alone else experiment.run(_finished_runs(name, experiment, images))
        changed = add(folder, rows)
        if findings is None:
            findings = experiment.from_ledger(folder)
        notes = (
            [f"the images are those of {Path(images).name}, in place of the experiment's own data set"]
            if images
            else []
        )
        write(folder, findings, [*findings.notes, *notes], DPI)
        tell(f"{name}  {changed} rows new or changed, {len(rows)} runs checked")
    for page in write_pages(results, docs):
        tell(f"written  {page}")


class FinishedRuns(RunCache):
    """A cache that makes no runs and raises BadConfig if a run is missing.

    With `in_part`, missing runs are left out if at least one run exists.
    """

    in_part = False

    def _carry_out(self, jobs: Any) -> None:
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
    """The finished runs of an experiment; images: from `_images`."""
    scale = "paper" if experiment.scales else "smoke"  # experiments without scales are always run in full
    data = ["data=image_folder", f"data.init_args.path={images}"] if images else []
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


def _cells(experiment: PaperResult, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, dict[str, Any]]]:
    found = [(run, experiment.cell(run.config, run.path.name)) for run in runs]
    return [(run, cell) for run, cell in found if cell is not None]


def _experiment_of(path: Path, to: str | None) -> tuple[str, PaperResult]:
    if to is None:
        raise BadConfig(f"{path} is a run: give its experiment with --to")
    experiment = find(to)
    if not experiment.stands_alone:
        raise BadConfig(f"--to {to}: its runs belong together; publish {to} as a whole")
    run = load_run(path)
    if experiment.cell(run.config, run.path.name) is None:
        raise BadConfig(f"--to {to}: {path.name} is none of its cells (other data, model, partition or method)")
    return to, experiment


def _command(name: str, experiment: PaperResult, cell: dict[str, Any], run: RunRecord) -> str:
    words = ["raylfl reproduce", name, *(["--scale paper"] if experiment.scales else [])]
    values = cell | {"seed": run.config["seed"]}
    words += [f"--only {key}={plain(values[key])}" for key in experiment.choices if key in values]
    if images := _images([run]):
        words += ["data=image_folder", f"data.init_args.path={Path(images).name}"]
    return " ".join(words)
