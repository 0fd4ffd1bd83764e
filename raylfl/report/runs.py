"""Run directories as plain data: read them, find them, pool the seeds of one setting.

Finished, running and crashed runs are read alike: a missing summary marks an unfinished run, and a line of a
`.jsonl` file that is cut short is left out and counted. Needs neither torch nor Ray.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from raylfl.errors import BadValue
from raylfl.report.labels import canonical, flatten, is_world, labels, method_of, order_key, varying

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NOT_DEFINING = ("seed", "name", "runtime", "logging", "checkpoint")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same results, some ten times faster


@dataclass(eq=False)
class RunRecord:
    """One run as it lies on disk.

    rounds: the 0-based rounds that have a row [R], increasing. metrics: name -> values [R], nan where the
    round did not measure it, inf where it measured something that is not finite (the run diverged).
    summary: empty while the run is unfinished. damaged: unreadable lines of `metrics.jsonl`.
    """

    path: Path
    config: dict[str, Any]
    rounds: Ints
    metrics: dict[str, Floats]
    summary: dict[str, Any]
    damaged: int = 0

    @property
    def finished(self) -> bool:
        """Whether `summary.json` was written, which a run does last."""
        return bool(self.summary)

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def setting(self) -> dict[str, Any]:
        """The config without seed, name, runtime, logging and checkpoint, in dotted keys."""
        return flatten({key: value for key, value in self.config.items() if key not in NOT_DEFINING})

    def column(self, name: str) -> Floats:
        """The metric's values [R]; all nan where the run never measured it."""
        return self.metrics.get(name, np.full(len(self.rounds), np.nan))

    def measured(self, name: str) -> bool:
        """Whether the metric has at least one finite value."""
        return bool(np.isfinite(self.column(name)).any())

    @cached_property
    def participation(self) -> list[dict[str, Any]]:
        """The rows of `participation.jsonl`, read on first use: {"round", "cohort", "received", ...}."""
        return _rows(self.path / "participation.jsonl")[0]

    @property
    def clients(self) -> int:
        """N: of the config; where the data decide, of the partition; at least every client that took part."""
        if self.config.get("num_clients"):
            return int(self.config["num_clients"])
        if self.partition_counts is not None:
            return len(self.partition_counts[1])
        return 1 + max((max(row["cohort"], default=-1) for row in self.participation), default=-1)

    @cached_property
    def partition_counts(self) -> tuple[list[str], Ints] | None:
        """Class names and samples per client and class [N, classes]; None where the run kept no counts."""
        data = _json(self.path / "partition_counts.json")
        if not data.get("counts"):
            return None
        return [str(name) for name in data["classes"]], np.asarray(data["counts"], dtype=np.int64)


@dataclass(eq=False)
class Group:
    """The seeds of one setting. label tells it from the other groups; runs are sorted by seed."""

    label: str
    setting: dict[str, Any]
    runs: list[RunRecord] = field(default_factory=list)

    @property
    def method(self) -> str:
        return method_of(self.setting)


def load_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read one run directory. Raises BadValue if it holds no `config.yaml` or no `metrics.jsonl`."""
    folder = Path(path)
    if not is_run(folder):
        need = "a run's directory (config.yaml and metrics.jsonl)"
        raise BadValue("path", got=folder, need=need)
    config = yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), Loader=_Loader)
    rows, damaged = _rows(folder / "metrics.jsonl")
    rounds, metrics = _columns(rows)
    return RunRecord(folder, config or {}, rounds, metrics, _json(folder / "summary.json"), damaged)


def is_run(folder: Path) -> bool:
    """Whether a directory has the two files that make it a run."""
    return (folder / "config.yaml").is_file() and (folder / "metrics.jsonl").is_file()


def find_runs(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The run directories at and below the given ones, each once, sorted within each path.

    Raises BadValue for a path that is no directory, and where none of them holds a run (`runs/digits/*` may well
    include a report).
    """
    given = [Path(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found: dict[Path, Path] = {}
    below_all = [sorted(_below(path)) for path in given]
    for path, below in zip(given, below_all, strict=True):
        if not below and not (path.is_dir() and any(below_all)):
            hint = f"{path} holds none" if path.is_dir() else f"there is no directory {path}"
            need = "run directories, or directories that hold some (config.yaml with metrics.jsonl)"
            raise BadValue("path", got=path, need=need, hint=hint)
        for folder in below:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def _below(top: Path) -> Iterable[Path]:
    for folder, names, _ in os.walk(top):
        if is_run(Path(folder)):
            names.clear()  # a run holds no runs
            yield Path(folder)
        names[:] = [name for name in names if not name.startswith(".")]


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Pool runs whose settings are equal, in the order world, method, tuned values.

    Of two runs with equal setting and seed only the one with more rounds counts (the later path of equals):
    they are the same experiment, and pooling both would make the spread over seeds too small.
    """
    groups: dict[str, Group] = {}
    for run in runs:
        setting = run.setting
        groups.setdefault(canonical(setting), Group("", setting)).runs.append(run)
    for group in groups.values():
        by_seed: dict[str, RunRecord] = {}
        for run in sorted(group.runs, key=lambda run: (len(run.rounds), str(run.path))):
            by_seed[canonical(run.seed)] = run
        group.runs = sorted(by_seed.values(), key=lambda run: order_key(run.seed))
    keys = sorted(varying([group.setting for group in groups.values()]), key=lambda key: not is_world(key))
    ordered = sorted(groups.values(), key=lambda group: [order_key(group.setting.get(key)) for key in keys])
    for group, label in zip(ordered, labels([group.setting for group in ordered]), strict=True):
        group.label = label
    return ordered


def _rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The objects of a .jsonl file, and how many lines were no object (cut short by a crash)."""
    if not path.is_file():
        return [], 0
    rows, damaged = [], 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in filter(str.strip, lines):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                row = None
            if isinstance(row, dict):
                rows.append(row)
            else:
                damaged += 1
    return rows, damaged


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):  # not yet written, or being written
        return {}
    return data if isinstance(data, dict) else {}


def _columns(rows: Sequence[dict[str, Any]]) -> tuple[Ints, dict[str, Floats]]:
    """Rows to columns; of two rows of one round (a resumed run) the later holds."""
    by_round = {row["round"]: row for row in rows if isinstance(row.get("round"), int)}
    ordered = [by_round[r] for r in sorted(by_round)]
    names = dict.fromkeys(key for row in ordered for key, value in row.items() if _is_number(value))
    names.pop("round", None)
    metrics = {name: np.array([_number(row.get(name)) for row in ordered]) for name in names}
    return np.array([row["round"] for row in ordered], dtype=np.int64), metrics


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _number(value: Any) -> float:
    if not _is_number(value):
        return math.nan
    return float(value) if math.isfinite(value) else math.inf
