"""Caches of an experiment that make no runs: of the ledger's rows, and of what exists, to find what is missing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from papers.base import PaperResult, plain
from papers.grid import Grid
from papers.ledger import Row, order
from papers.run_cache import CellConfig, RunCache, load_record
from raylfl.errors import BadConfig
from raylfl.execution.planned import PlannedRun
from raylfl.execution.store import words_of
from raylfl.report.runs import RunRecord


class LedgerRows(RunCache):
    """A cache whose runs are the ledger's rows of an experiment; a row may be missing if `--only` can select cells."""

    def __init__(self, experiment: Grid, rows: Iterable[Row], folder: Path = Path()):
        super().__init__(folder, "paper" if experiment.scales else "smoke")
        self.experiment = experiment
        self.rows = {key_of(row.cell, row.seed): row for row in sorted(rows, key=order)}

    def records(self, wanted: Sequence[tuple[CellConfig, int]]) -> list[RunRecord | None]:
        pairs = [(setting, self.rows.get(key_of(setting.cell, seed))) for setting, seed in wanted]
        missing = list(dict.fromkeys(setting.label for setting, row in pairs if row is None))
        if missing and not self.experiment.choices:
            names = f"{len(missing)} settings are missing ({missing[0]}, ...)"
            raise BadConfig(f"runs of {names}; `raylfl reproduce` makes them")
        return [None if row is None else self.record(setting, row) for setting, row in pairs]

    def record(self, setting: CellConfig, row: Row) -> RunRecord:
        if lacks := self.experiment.lacks(row):
            raise BadConfig(
                f"{setting.label}: its row in the ledger is older than {', '.join(lacks)}; make the run again"
            )
        return run_of(row, setting.config, setting.folder(row.seed, row.digest))


def run_of(row: Row, config: Mapping[str, Any], name: str) -> RunRecord:
    """A row as a run with this config and name."""
    rounds = row.rounds
    if row.diverged:  # without `diverged_at`, one round more than up to the last point
        seen = 2 + int(row.curve[-1][0] if row.curve else -1)
        rounds = max(1, seen if row.diverged_at is None else row.diverged_at)
    metrics = {}
    for metric, points in {row.metric: row.curve, **row.curves}.items():
        values = metrics[metric] = np.full(rounds, np.nan)
        for r, value in points:
            values[int(r)] = value
        if row.diverged:
            values[-1] = np.inf
    config = {**config, "seed": row.seed, "rounds": row.rounds}
    return RunRecord(Path(name), config, np.arange(rounds), metrics, {"measures": row.measures})


def key_of(cell: Any, seed: int) -> tuple[Any, ...]:
    return (*((axis, plain(value)) for axis, value in sorted(cell.items())), seed)


class Lacking(RunCache):
    """A cache of finished runs and rows, which collects `missing` runs, and raises Enough if nothing can be said."""

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
        row = self.ledger and self.ledger.rows.get(key_of(setting.cell, seed))
        if self.ledger and row and not self.ledger.experiment.lacks(row):
            return self.ledger.record(setting, row)
        return load_record(run) if self.begun(setting, seed) and (run := self.plan(setting, seed)).complete else None

    def begun(self, setting: CellConfig, seed: int) -> bool:
        """Whether the run seems to exist, by the name of its folder without the digest."""
        return f"{words_of(setting.label)}-s{seed}" in self.folders

    def plans(self) -> Iterator[PlannedRun]:
        """The missing runs, interrupted ones first."""
        runs = {(setting.label, seed): (setting, seed) for setting, seed in self.missing}
        for setting, seed in sorted(runs.values(), key=lambda run: not self.begun(*run)):
            yield self.plan(setting, seed)


class Enough(Exception):
    """Ends an experiment as soon as its next missing runs are known."""
