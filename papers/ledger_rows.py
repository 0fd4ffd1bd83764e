"""Caches of an experiment that make no runs: of the ledger's rows, and of what exists, to find what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from papers.base import PaperResult
from papers.choice import plain
from papers.grid import Grid
from papers.ledger import Row, order
from papers.run_cache import CellConfig, RunCache, folder_name, load_record
from raylfl.errors import BadConfig
from raylfl.execution.planned import PlannedRun
from raylfl.execution.store import words_of
from raylfl.report.runs import RunRecord


class LedgerRows(RunCache):
    """A cache whose runs are the ledger's rows of an experiment, with the metrics and measures of the rows.

    Settings without a row are left out if the experiment can be published in part, that is if `--only` can select its
    cells; otherwise a missing row raises BadConfig. It also does if rows lack numbers that the experiment reads: they
    are older than these. folder: of the ledger.
    """

    def __init__(self, experiment: Grid, rows: Iterable[Row], folder: Path = Path()):
        super().__init__(folder, "paper" if experiment.scales else "smoke")
        self.experiment = experiment
        self.rows = {key_of(row.cell, row.seed): row for row in sorted(rows, key=order)}

    def records(self, wanted: Sequence[tuple[CellConfig, int]]) -> list[RunRecord | None]:
        rows = [self.rows.get(key_of(setting.cell, seed)) for setting, seed in wanted]
        pairs = list(zip((setting for setting, _ in wanted), rows, strict=True))
        missing = list(dict.fromkeys(setting.label for setting, row in pairs if row is None))
        if missing and not self.experiment.choices:
            names = f"{len(missing)} settings are missing ({missing[0]}, ...)"
            raise BadConfig(f"runs of {names}; `raylfl reproduce` makes them")
        return [None if row is None else self.record(setting, row) for setting, row in pairs]

    def lacks(self, row: Row) -> list[str]:
        """The measures and curves of the experiment that a row is too old to have."""
        names = [*self.experiment.measures, *self.experiment.curves]
        return [name for name in names if name not in row.measures and name not in row.curves]

    def record(self, setting: CellConfig, row: Row) -> RunRecord:
        """The row as a run. Raises BadConfig if it lacks numbers that the experiment reads."""
        if lacks := self.lacks(row):
            raise BadConfig(
                f"{setting.label}: its row in the ledger is older than {', '.join(lacks)}; make the run again"
            )
        return run_of(row, setting.config, folder_name(setting, row.seed, row.digest))


def run_of(row: Row, config: Mapping[str, Any], name: str) -> RunRecord:
    """A row as a run with this name, of a setting with this config."""
    rounds = _rounds(row)
    metrics = {metric: _column(points, rounds) for metric, points in {row.metric: row.curve, **row.curves}.items()}
    if row.diverged:
        for values in metrics.values():
            values[-1] = np.inf
    config = {**config, "seed": row.seed, "rounds": row.rounds}
    return RunRecord(Path(name), config, np.arange(rounds), metrics, {"measures": row.measures})


def key_of(cell: Any, seed: int) -> tuple[Any, ...]:
    """The key of a cell and a seed, by the texts of the cell's values."""
    return (*((axis, plain(value)) for axis, value in sorted(cell.items())), seed)


def _column(points: Sequence[Sequence[float]], rounds: int) -> np.ndarray:
    values = np.full(rounds, np.nan)
    for r, value in points:
        values[int(r)] = value
    return values


def _rounds(row: Row) -> int:
    """The number of rounds of the run; if it diverged and `diverged_at` is None, 1 more than up to the last point."""
    if not row.diverged:
        return row.rounds
    return max(1, row.diverged_at if row.diverged_at is not None else 2 + int(row.curve[-1][0] if row.curve else -1))


class Lacking(RunCache):
    """A cache of finished runs and of the ledger's rows, which makes no runs but collects those that are neither.

    missing: setting and seed of each of these. Raises Enough where an experiment can say nothing without them. rows:
    of the ledger; arguments: those of `RunCache`.
    """

    def __init__(self, experiment: PaperResult, rows: Iterable[Row], *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.experiment, self.missing = experiment, list[tuple[CellConfig, int]]()
        self.ledger = LedgerRows(experiment, rows) if isinstance(experiment, Grid) else None
        names = sorted(path.name for path in self.runs.iterdir()) if self.runs.is_dir() else []
        self.folders = {name.rpartition("-")[0] for name in names}

    def records(self, wanted: Sequence[tuple[CellConfig, int]]) -> list[RunRecord | None]:
        records = [self._existing(setting, seed) for setting, seed in wanted]
        self.missing += [each for each, record in zip(wanted, records, strict=True) if record is None]
        if self.missing and not (any(records) and self.experiment.choices):
            raise Enough
        return records

    def _existing(self, setting: CellConfig, seed: int) -> RunRecord | None:
        """The ledger's row of this run, or the finished run; None if there is neither."""
        row = self.ledger and self.ledger.rows.get(key_of(setting.cell, seed))
        if self.ledger and row and not self.ledger.lacks(row):
            return self.ledger.record(setting, row)
        return load_record(run) if self.begun(setting, seed) and (run := self.plan(setting, seed)).complete else None

    def begun(self, setting: CellConfig, seed: int) -> bool:
        """Whether the run of a setting seems to exist, by the name of its folder without the digest of its config."""
        return f"{words_of(setting.label)}-s{seed}" in self.folders

    def plans(self) -> Iterator[PlannedRun]:
        """The missing runs, interrupted ones first."""
        runs = {(setting.label, seed): (setting, seed) for setting, seed in self.missing}
        for setting, seed in sorted(runs.values(), key=lambda run: not self.begun(*run)):
            yield self.plan(setting, seed)


class Enough(Exception):
    """The exception that ends an experiment as soon as its next missing runs are known."""
