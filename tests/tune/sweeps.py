"""A small sweep over the tests' own quadratics, and functions that carry out its trials without Ray."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from raylfl.execution.resources import Need
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.tune.job import SweepJob
from raylfl.tune.journal import Journal, Trial
from raylfl.tune.spec import Sweep, load_sweep
from raylfl.tune.stage import StageRun
from raylfl.tune.sweep import plan
from raylfl.tune.table import write_tables
from raylfl.tune.trial import run_trial

QUADRATICS: dict[str, Any] = {
    "dtype": "float64",
    "rounds": 6,
    "model": {"class_path": "tests.runtime.modules.Quadratic"},
    "data": {"class_path": "tests.runtime.modules.Quadratics"},
    "partition": {"name": "natural"},
    "local": {"steps": 3, "batch_size": "full", "lr": 0.1},
    "eval": {"global": True, "inconsistency": False},
    "checkpoint": {"every": 2},
    "runtime": {"backend": "local", "cpus_per_worker": 1.0},
    "space": {"local.lr": {"grid": [0.1, 0.01]}},
    "metric": "global/distance",
}


def write(folder: Path, name: str = "quadratics", **changes: Any) -> Path:
    """A sweep file of QUADRATICS with some keys changed."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**QUADRATICS, **changes}))
    return path


def sweep_of(folder: Path, **changes: Any) -> Sweep:
    return load_sweep(write(folder, **changes))


def job_of(sweep: Sweep, folder: Path, url: str | None = None) -> SweepJob:
    """The job of a sweep in this folder, which this node sees if there is no URL."""
    if url is None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sweep.yaml").touch()
    return SweepJob(sweep.content, str(folder), 1, url=url)


def carry_out(
    sweep: Sweep, trial: Trial, folder: Path, stop_after: int | None = None, url: str | None = None
) -> list[dict[str, Any]]:
    """The reports of a trial in this process; stop_after: rounds after which Ray Tune would stop it."""
    reports: list[dict[str, Any]] = []

    def report(row: dict[str, Any]) -> None:
        reports.append(row)
        if row["round"] == stop_after:
            raise SystemExit  # like tune.report in a stopped trial

    with suppress(SystemExit):
        run_trial(job_of(sweep, folder, url), trial, report)
    return reports


def finish(sweep: Sweep, folder: Path) -> list[str]:
    """Plans and carries out, without Ray, the rest of a sweep in this folder; returns the printed lines."""
    said: list[str] = []
    journal = Journal(folder)
    plan(sweep, 0, folder, journal)
    stage = StageRun(sweep, 0, folder, journal, Need([{"CPU": 1.0}], 1, 1), said.append)
    for trial in [trial for trial in journal.of_stage(0) if not stage._is_over(trial)]:
        said.append(stage.end(trial, carry_out(sweep, trial, folder)[-1]))
    write_tables(sweep, folder, journal)
    return said


def tables(folder: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """runs.csv in the order of the runs' names, without seconds, and settings.csv."""
    with open(folder / "runs.csv") as one, open(folder / "settings.csv") as other:
        runs = sorted(csv.DictReader(one), key=lambda row: row["run"])
        return [{k: v for k, v in row.items() if k != "seconds"} for row in runs], list(csv.DictReader(other))


def metrics(folder: Path, without: tuple[str, ...] = ("time/round", "traffic/")) -> list[dict[str, Any]]:
    """The rows of a run, without entries that depend on the machine."""
    return [{k: v for k, v in row.items() if not k.startswith(without)} for row in RunDirectory(folder).metrics()]
