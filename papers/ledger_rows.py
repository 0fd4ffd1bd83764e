"""The rows of the ledger in place of runs, for experiments whose rows have every measured point of the main metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raylfl.report.runs import Group, RunRecord
from papers.base import PaperResult
from papers.ledger import Row
from papers.run_cache import RunCache, folder_name
from papers.setting import Setting


class LedgerRows(RunCache):
    """A cache whose runs are the ledger's rows of an experiment, with one metric; cells without a row are left out."""

    def __init__(self, experiment: PaperResult, rows: Iterable[Row]):
        super().__init__(Path(), "paper")
        self.experiment = experiment
        self.rows = {(tuple(row.cell.items()), row.seed): row for row in rows}

    def groups(self, settings: Sequence[Setting], seeds: Sequence[int] = (0,)) -> list[Group]:
        found = [
            (setting, [record for seed in seeds if (record := self._record(setting, seed)) is not None])
            for setting in settings
        ]
        return [Group(setting.label, records[0].setting, records) for setting, records in found if records]

    def _record(self, setting: Setting, seed: int) -> RunRecord | None:
        config: Mapping[str, Any] = {**setting.config, "seed": seed}
        name = folder_name(setting, seed, "")
        cell = self.experiment.cell(config, name)
        row = None if cell is None else self.rows.get((tuple(cell.items()), seed))
        if row is None:
            return None
        rounds = _rounds(row)
        values = np.full(rounds, np.nan)
        for r, value in row.curve:
            values[int(r)] = value
        if row.diverged:
            values[-1] = np.inf
        return RunRecord(Path(name), {**config, "rounds": row.rounds}, np.arange(rounds), {row.metric: values}, {})


def _rounds(row: Row) -> int:
    """The number of rounds of the run; if it diverged and `diverged_at` is None, 1 more than up to the last point."""
    if not row.diverged:
        return row.rounds
    return max(1, row.diverged_at if row.diverged_at is not None else 2 + int(row.curve[-1][0] if row.curve else -1))
