"""The tables of a sweep (trials; settings with pooled seeds), and the settings that continue in the next stage."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from raylfl.report.derived import Stat
from raylfl.report.render import csv_text
from raylfl.report.runs import is_run, readable
from raylfl.runtime.records.files import atomic_write
from raylfl.tune.journal import FINISHED, Journal, Trial
from raylfl.tune.score import WORST
from raylfl.tune.space import Values, comparable, look_up
from raylfl.tune.spec import Sweep

Columns = list[tuple[str, Callable[..., Any]]]  # the heading of each column, and a function that gives its cells


@dataclass(frozen=True)
class TrialRow:
    """A trial with its result.

    state: how it ended (finished, stopped, diverged, failed), or `open` while it has not ended. rounds: the number of
    recorded rounds. seconds: real seconds of these rounds.
    """

    trial: Trial
    state: str
    reason: str
    rounds: int
    score: float | None
    seconds: float
    values: Values  # with PBT, the newest values


@dataclass
class SettingRow:
    """The trials of one setting (a point of the search space) in one stage, one per seed."""

    stage: int
    setting: int
    values: Values
    rows: list[TrialRow] = field(default_factory=list)

    @property
    def finished(self) -> int:
        return sum(row.state == FINISHED for row in self.rows)

    @property
    def rounds(self) -> int:
        return max(row.rounds for row in self.rows)

    @property
    def score(self) -> Stat:
        """Mean and std of the score over the finished seeds; without finished seeds, over all seeds with a score."""
        chosen = [row for row in self.rows if row.state == FINISHED or not self.finished]
        return Stat.over([row.score for row in chosen if row.score is not None], of=len(self.rows))


def trial_rows(sweep: Sweep, folder: Path, journal: Journal) -> list[TrialRow]:
    """The rows of all trials of a sweep, in the order in which they were planned.

    folder: the sweep's folder, which contains the trials' run directories.
    """
    rows = []
    for trial in journal.trials.values():
        end, path = journal.ends.get(trial.id), folder / trial.id
        run = readable(path)
        state, reason = (end.state, end.reason) if end else ("open", "")
        faults = run.faults if run else ["config.yaml is damaged"] if is_run(path) else []
        reason = "; ".join(filter(None, [reason, *faults]))
        score = sweep.score.of(run) if run and state != "diverged" else None
        seconds = float(np.nansum(run.column("time/round"))) if run else 0.0
        values = {key: look_up(key, {}, run.config) for key in trial.values} if run else trial.values
        rows.append(TrialRow(trial, state, reason, len(run.rounds) if run else 0, score, seconds, values))
    return rows


def setting_rows(sweep: Sweep, rows: Sequence[TrialRow], stage: int) -> list[SettingRow]:
    """The settings of a stage, the best first.

    Settings are sorted by the number of finished seeds with a score, then by the mean score. Settings without a
    finished seed follow, sorted by rounds done. Settings whose finished seeds have no score come last. rows: the trials
    of all stages.
    """
    groups: dict[int, SettingRow] = {}
    for row in rows:
        if row.trial.stage == stage:
            groups.setdefault(row.trial.setting, SettingRow(stage, row.trial.setting, row.values)).rows.append(row)

    def order(group: SettingRow) -> tuple[int, int, float]:
        counted = group.score.count if group.finished else 0
        return -counted, 0 if group.finished else -group.rounds, -ranked(sweep, group)

    return sorted(groups.values(), key=order)


def ranked(sweep: Sweep, group: SettingRow) -> float:
    mean = group.score.mean
    return sweep.score.ranked(mean) if math.isfinite(mean) else WORST


def survivors(sweep: Sweep, groups: Sequence[SettingRow], within: float) -> list[SettingRow]:
    """The settings with a mean score at most `within` worse than the best of the same algorithm in the same scenario.

    Scenario: data, model, participation and so on (see `comparable`). within: the largest difference, in the metric's
    unit. Settings without a finished seed are left out. The result is sorted by setting number.
    """
    alive = [group for group in groups if group.finished]
    best: dict[str, float] = {}
    for group in alive:
        best[comparable(group.values)] = max(best.get(comparable(group.values), -math.inf), ranked(sweep, group))
    kept = [group for group in alive if ranked(sweep, group) >= best[comparable(group.values)] - within - 1e-12]
    return sorted(kept, key=lambda group: group.setting)


# -- as files ----------------------------------------------------------------------------------------------------


def write_tables(sweep: Sweep, folder: Path, journal: Journal) -> list[SettingRow]:
    """Writes trials.csv and settings.csv; returns the settings of the last stage with trials, the best first."""
    rows = trial_rows(sweep, folder, journal)
    named = f"{sweep.options.mode}:{sweep.score.metric}"
    values: Columns = [(key, lambda row, *rank, key=key: row.values.get(key, "")) for key in sweep.space.keys]
    of_trials: Columns = [
        ("trial", lambda row: row.trial.id),
        ("stage", lambda row: row.trial.stage),
        ("setting", lambda row: row.trial.setting),
        ("seed", lambda row: row.trial.seed),
        *values,
        ("state", lambda row: row.state),
        ("rounds", lambda row: row.rounds),
        (named, lambda row: row.score),
        ("seconds", lambda row: f"{row.seconds:.3f}"),
        ("reason", lambda row: row.reason.replace("\n", " ")),
    ]
    of_settings: Columns = [
        ("stage", lambda group, rank: group.stage),
        ("rank", lambda group, rank: rank),
        ("setting", lambda group, rank: group.setting),
        *values,
        ("seeds", lambda group, rank: len(group.rows)),
        ("finished", lambda group, rank: group.finished),
        ("rounds", lambda group, rank: group.rounds),
        (named, lambda group, rank: group.score.mean),
        ("std", lambda group, rank: group.score.std),
    ]
    stages = [setting_rows(sweep, rows, stage) for stage in range(len(sweep.stages))]
    _write(folder / "trials.csv", of_trials, [(row,) for row in rows])
    ranks = [(group, rank) for groups in stages for rank, group in enumerate(groups, 1)]
    _write(folder / "settings.csv", of_settings, ranks)
    return next((groups for groups in reversed(stages) if groups), [])


def _write(path: Path, columns: Columns, rows: Sequence[tuple[Any, ...]]) -> None:
    """Writes a table as CSV. rows: the arguments of the columns' functions."""
    lines = [[_cell(value(*row)) for _, value in columns] for row in rows]
    atomic_write(path, csv_text([head for head, _ in columns], lines))


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return json.dumps(value) if isinstance(value, (dict, list)) else value
