"""The rows of the ledger in place of runs, for experiments whose rows have every measured point of the main metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raylfl.report.runs import Group, RunRecord
from raylfl.reproduce.base import PaperResult
from raylfl.reproduce.ledger import Row
from raylfl.reproduce.run_cache import RunCache, folder_name
from raylfl.reproduce.setting import Setting


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
        values = np.full(row.rounds, np.nan)
        for r, value in row.curve:
            values[int(r)] = value
        return RunRecord(Path(name), dict(config), np.arange(row.rounds), {row.metric: values}, {})
