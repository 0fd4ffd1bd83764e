"""A small sweep over the tests' own quadratics, and functions that carry out its trials without Ray."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
import yaml

import raylfl
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.tune.journal import FAILED, OPEN, Journal, Trial, write_tables
from raylfl.tune.spec import Sweep, load_sweep
from raylfl.tune.sweep import plan
from raylfl.tune.trial import SettingTrial
from raylfl.tune.tuner import SweepRun

if TYPE_CHECKING:
    from raylfl.runtime.records.mirror import Mirror

QUADRATICS: dict[str, Any] = {
    "dtype": "float64",
    "rounds": 6,
    "model": {"class_path": "tests.runtime.modules.Quadratic"},
    "data": {"class_path": "tests.runtime.modules.Quadratics"},
    "partition": {"name": "natural"},
    "local": {"steps": 3, "batch_size": "full", "lr": 0.1},
    "eval": {"global": True, "inconsistency": False},
    "checkpoint": {"every": 2},
    "runtime": {"backend": "local", "cpus_per_worker": 1.0, "step": "autograd", "vectorize": "never"},
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


def planned(sweep: Sweep, folder: Path, url: str | None = None) -> tuple[SweepRun, list[str]]:
    """The planned trials of a sweep in this folder or at a URL, for this process instead of Ray; the lines said."""
    said: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    run = SweepRun(
        sweep,
        folder,
        Journal(folder),
        RuntimeConfig(backend="local"),
        said.append,
        None if url is None else cast("Mirror", SimpleNamespace(url=url)),
    )
    run.bundles = [{"CPU": 1.0}]
    plan(run)
    return run, said


def carry_out(run: SweepRun, trial: Trial, stop_after: int | None = None) -> list[dict[str, Any]]:
    """The reports of a trial in this process; stop_after: rounds after which Ray Tune would stop it."""
    tuned, reports = object.__new__(SettingTrial), list[dict[str, Any]]()
    tuned.setup(run.config(trial), run.job)
    while not (reports and (reports[-1]["done"] or reports[-1]["round"] == stop_after)):
        reports.append(tuned.step())
    tuned.cleanup()
    return reports


def finish(sweep: Sweep, folder: Path) -> list[str]:
    """Plans and carries out, without Ray, the rest of a sweep in this folder; returns the printed lines."""
    run, said = planned(sweep, folder)
    for trial in run.trials:
        if run.end_of(trial).state in (OPEN, FAILED):
            said.append(run.end(trial.id, carry_out(run, trial)[-1]))
    write_tables(sweep, folder, run.journal)
    return said


def folder_of(folder: Path, setting: int, seed: int = 0) -> Path:
    """The run directory of a setting's seed in a sweep's folder."""
    (trial,) = [trial for trial in Journal(folder).trials.values() if trial.setting == setting]
    return folder / dict(zip(trial.seeds, trial.runs, strict=True))[seed]


def params(folder: Path) -> torch.Tensor:
    """The final parameters of the run in a folder."""
    return cast("torch.Tensor", torch.load(folder / "final.pt", weights_only=True)["params"])


def plain(folder: Path, *overrides: str, **changes: Any) -> raylfl.Result:
    """The same run without any sweep: six rounds, lr 0.1; its directory is in this folder."""
    config = {k: v for k, v in {**QUADRATICS, **changes}.items() if k not in ("space", "metric")}
    return raylfl.run(config, [f"logging.dir={folder}/plain", "logging.report=false", *overrides])


def tables(folder: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """runs.csv in the order of settings and seeds, without seconds, and settings.csv."""
    with open(folder / "runs.csv") as one, open(folder / "settings.csv") as other:
        runs = sorted(csv.DictReader(one), key=lambda row: (row["setting"], row["seed"]))
        return [{k: v for k, v in row.items() if k != "seconds"} for row in runs], list(csv.DictReader(other))


def metrics(folder: Path, without: tuple[str, ...] = ("time/round", "traffic/")) -> list[dict[str, Any]]:
    """The rows of a run, without entries that depend on the machine."""
    return [{k: v for k, v in row.items() if not k.startswith(without)} for row in RunDirectory(folder).metrics()]
