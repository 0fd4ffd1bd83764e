"""The ledger's rows of an experiment in place of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from papers.choice import plain
from papers.grid import Grid
from papers.ledger import Row, order
from papers.run_cache import RunCache, folder_name
from papers.setting import CellConfig
from raylfl.errors import BadConfig
from raylfl.report.runs import Group, RunRecord


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

    def groups(self, settings: Sequence[CellConfig], seeds: Sequence[int] = (0,)) -> list[Group]:
        rows = {
            s.label: [self.rows[key] for seed in seeds if (key := key_of(s.cell, seed)) in self.rows] for s in settings
        }
        lacking = [label for label, of_setting in rows.items() if len(of_setting) < len(seeds)]
        if lacking and not self.experiment.choices:
            raise BadConfig(
                f"runs of {len(lacking)} settings are missing ({lacking[0]}, ...); `raylfl reproduce` makes them"
            )
        return [
            Group(s.label, records[0].setting, records)
            for s in settings
            if (records := [self.record(s, row) for row in rows[s.label]])
        ]

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
