"""The tables of a sweep (runs; settings with the means over their seeds), and the settings of the next stage."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raylfl.report.derived import Stat
from raylfl.report.render import csv_text
from raylfl.report.runs import is_run, readable
from raylfl.runtime.records.files import atomic_write
from raylfl.tune.journal import DIVERGED, FINISHED, End, Journal, Trial
from raylfl.tune.score import WORST
from raylfl.tune.space import comparable
from raylfl.tune.spec import Sweep

OPEN = End("open")  # the end of a trial that has not ended


@dataclass(frozen=True)
class RunRow:
    """The run of a seed with its result.

    state: how it ended (finished, stopped, diverged, failed), or `open` while it has not ended. rounds: the number of
    recorded rounds. seconds: real seconds of these rounds.
    """

    id: str
    seed: int
    state: str
    reason: str
    rounds: int
    score: float | None
    seconds: float


@dataclass(frozen=True)
class SettingRow:
    """A trial, which is a setting in one stage, with its runs."""

    trial: Trial
    runs: list[RunRow]

    @property
    def setting(self) -> int:
        return self.trial.setting

    @property
    def finished_runs(self) -> int:
        return sum(run.state == FINISHED for run in self.runs)

    @property
    def rounds(self) -> int:
        return max(run.rounds for run in self.runs)

    @property
    def score(self) -> Stat:
        """Mean and std of the score over the finished seeds; without finished seeds, over all seeds with a score."""
        chosen = [run for run in self.runs if run.state == FINISHED or not self.finished_runs]
        return Stat.over([run.score for run in chosen if run.score is not None], of=len(self.runs))


def setting_row(sweep: Sweep, folder: Path, trial: Trial, end: End = OPEN) -> SettingRow:
    """A trial with its runs. folder: the sweep's folder, which contains the run directories. end: the trial's end."""
    rows = []
    for seed in trial.seeds:
        path = folder / trial.run_id(seed)
        run = readable(path)
        state = FINISHED if run and run.complete(trial.rounds) else end.of_run(seed)
        faults = run.faults if run else ["config.yaml is damaged"] if is_run(path) else []
        reason = "; ".join(filter(None, [end.reason if state != FINISHED else "", *faults]))
        score = sweep.score.of(run) if run and state != DIVERGED else None
        seconds = float(np.nansum(run.column("time/round"))) if run else 0.0
        rows.append(RunRow(path.name, seed, state, reason, len(run.rounds) if run else 0, score, seconds))
    return SettingRow(trial, rows)


def setting_rows(sweep: Sweep, folder: Path, journal: Journal, stage: int) -> list[SettingRow]:
    """The settings of a stage, the best first.

    Settings are sorted by the number of finished seeds with a score, then by the mean score. Settings without a
    finished seed follow, sorted by rounds done. Settings whose finished seeds have no score come last.
    """

    def order(row: SettingRow) -> tuple[int, int, float]:
        counted = row.score.count if row.finished_runs else 0
        return -counted, 0 if row.finished_runs else -row.rounds, -rank_key(sweep, row)

    rows = [setting_row(sweep, folder, t, journal.ends.get(t.id, OPEN)) for t in journal.of_stage(stage)]
    return sorted(rows, key=order)


def rank_key(sweep: Sweep, row: SettingRow) -> float:
    mean = row.score.mean
    return sweep.score.rank_key(mean) if math.isfinite(mean) else -WORST


def survivors(sweep: Sweep, rows: Sequence[SettingRow], within: float) -> list[SettingRow]:
    """The settings with a mean score at most `within` worse than the best of the same algorithm in the same scenario.

    Scenario: data, model, participation and so on (see `comparable`). within: the largest difference, in the metric's
    unit. Settings without a finished seed are left out. The result is sorted by setting number.
    """
    alive = [row for row in rows if row.finished_runs]
    best: dict[str, float] = {}
    for row in alive:
        kind = comparable(row.trial.values)
        best[kind] = max(best.get(kind, -math.inf), rank_key(sweep, row))
    near = [row for row in alive if rank_key(sweep, row) >= best[comparable(row.trial.values)] - within - 1e-12]
    return sorted(near, key=lambda row: row.setting)


def score_text(stat: Stat) -> str:
    """The score of a setting as text: `0.912 ± 0.004`; a dash if no seed has a score."""
    if not math.isfinite(stat.mean):
        return "-"
    return f"{stat.mean:.4g}" + (f" ± {stat.std:.2g}" if math.isfinite(stat.std) else "")


# -- as files ----------------------------------------------------------------------------------------------------


def write_tables(sweep: Sweep, folder: Path, journal: Journal) -> list[SettingRow]:
    """Writes runs.csv and settings.csv; returns the settings of the last stage with trials, the best first."""
    stages = [setting_rows(sweep, folder, journal, stage) for stage in range(len(sweep.stages))]
    named = f"{sweep.score.score}:{sweep.score.metric}"
    runs: list[dict[str, Any]] = []
    settings: list[dict[str, Any]] = []
    for stage, rows in enumerate(stages):
        for rank, row in sorted(enumerate(rows, 1), key=lambda pair: pair[1].setting):
            values = {key: row.trial.values.get(key, "") for key in sweep.space.keys}
            for run in row.runs:
                head = {"run": run.id, "stage": stage, "setting": row.setting, "seed": run.seed, **values}
                head |= {"state": run.state, "rounds": run.rounds, named: run.score, "seconds": f"{run.seconds:.3f}"}
                runs.append({**head, "reason": run.reason.replace("\n", " ")})
            head = {"stage": stage, "rank": rank, "setting": row.setting, **values, "seeds": len(row.runs)}
            head |= {"finished": row.finished_runs, "rounds": row.rounds}
            settings.append({**head, named: row.score.mean, "std": row.score.std})
    _write(folder / "runs.csv", runs)
    _write(folder / "settings.csv", sorted(settings, key=lambda row: (row["stage"], row["rank"])))
    return next((rows for rows in reversed(stages) if rows), [])


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes a table as CSV; rows: column -> cell, the same columns in each."""
    lines = [[_cell(value) for value in row.values()] for row in rows]
    atomic_write(path, csv_text(list(rows[0]) if rows else [], lines))


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return json.dumps(value) if isinstance(value, (dict, list)) else value
