"""The journal of a sweep, trials.jsonl: its trials and ends that their runs do not show; and its tables.

The state of a trial is its run directories. The journal adds the values that were drawn or proposed, and the trials
that the scheduler stopped or that failed.
"""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from raylfl.execution.planned import is_complete
from raylfl.report.derived import Stat
from raylfl.report.render import csv_text
from raylfl.report.runs import is_run, readable
from raylfl.runtime.records.files import atomic_write
from raylfl.runtime.records.lines import read_rows
from raylfl.runtime.records.run_dir import DIVERGED as DIVERGED_FILE
from raylfl.tune.space import Values
from raylfl.tune.spec import Sweep

OPEN, FINISHED, STOPPED, DIVERGED, FAILED = "open", "finished", "stopped", "diverged", "failed"
NAME = "trials.jsonl"


@dataclass(frozen=True)
class Trial:
    """A setting of a sweep, with its number and values by dotted key, and the names of its runs, one for each seed."""

    id: str
    setting: int
    seeds: list[int]
    values: Values
    runs: list[str]


@dataclass(frozen=True)
class End:
    """The end of a trial whose runs are not complete: stopped by the scheduler, or failed, and the reason."""

    state: str
    reason: str = ""


TRIAL, END = TypeAdapter(Trial), TypeAdapter(End)


def ends(folder: Path) -> dict[str, str]:
    """The states of the incomplete runs in this directory: run id -> state, as far as it is known."""
    journal = Journal(folder)
    ended = [(journal.trials[name], end.state) for name, end in journal.ends.items()]
    diverged = {path.parent.name: DIVERGED for path in folder.glob(f"*/{DIVERGED_FILE}")}
    return {run: state for trial, state in ended for run in trial.runs} | diverged


class Journal:
    """The journal of a sweep directory: its trials, in the order in which they were planned, and their ends, by id.

    damaged: the numbers of the lines that cannot be read; the trials of these lines are planned again, and find their
    runs.
    """

    def __init__(self, folder: Path):
        self.path = folder / NAME
        self.trials: dict[str, Trial] = {}
        self.ends: dict[str, End] = {}
        self._cut = self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")  # by a crash
        lines = read_rows(self.path)
        self.damaged = list(lines.damaged)
        for number, row in zip(lines.numbers, lines.rows, strict=True):
            try:
                if "values" in row:
                    self._add(TRIAL.validate_python(row))
                else:
                    self.ends[row.pop("trial")] = END.validate_python(row)
            except (KeyError, ValidationError):
                self.damaged.append(number)
        self.ends = {name: end for name, end in self.ends.items() if name in self.trials}

    def _add(self, trial: Trial) -> None:
        self.trials[trial.id] = trial
        self.ends.pop(trial.id, None)

    def plan(self, trial: Trial) -> None:
        """Adds a trial to the journal and its file, unless it is known with the same runs.

        The runs are others if raylfl, or a module of the user, has changed since; the trial is then open again.
        """
        known = self.trials.get(trial.id)
        if known is None or known.runs != trial.runs:
            self._add(trial)
            self._append(asdict(trial))

    def end(self, trial_id: str, state: str, reason: str = "") -> None:
        self.ends[trial_id] = End(state, reason)
        self._append({"trial": trial_id, **asdict(self.ends[trial_id])})

    def _append(self, row: dict[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write("\n" * self._cut + json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._cut = False


# -- tables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRow:
    """The run of a seed: how it ended, or `open`, its recorded rounds, and real seconds of these."""

    id: str
    seed: int
    state: str
    reason: str
    rounds: int
    score: float | None
    seconds: float


@dataclass(frozen=True)
class SettingRow:
    """A trial, which is a setting, with its runs."""

    trial: Trial
    runs: list[RunRow]

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


def setting_row(sweep: Sweep, folder: Path, trial: Trial, end: End) -> SettingRow:
    """A trial with its runs. folder: the sweep's folder, which contains the run directories. end: the trial's end."""
    rows = []
    for seed, name in zip(trial.seeds, trial.runs, strict=True):
        path = folder / name
        run, state, reason = readable(path), end.state, end.reason
        if (path / DIVERGED_FILE).is_file():
            state, reason = DIVERGED, (path / DIVERGED_FILE).read_text().strip()
        elif is_complete(path):
            state, reason = FINISHED, ""
        faults = run.faults if run else ["config.yaml is damaged"] if is_run(path) else []
        reason = "; ".join(filter(None, [reason, *faults]))
        score = sweep.score.of(run) if run and state != DIVERGED else None
        seconds = float(np.nansum(run.column("time/round"))) if run else 0.0
        rows.append(RunRow(path.name, seed, state, reason, len(run.rounds) if run else 0, score, seconds))
    return SettingRow(trial, rows)


def setting_rows(sweep: Sweep, folder: Path, journal: Journal) -> list[SettingRow]:
    """The settings of a sweep, the best first: by the number of finished seeds with a score, then by the mean score.

    Settings without a finished seed follow, sorted by rounds done; last are those whose finished seeds have no score.
    """

    def order(row: SettingRow) -> tuple[int, int, float]:
        counted = row.score.count if row.finished_runs else 0
        score = row.score.mean if math.isfinite(row.score.mean) else sweep.score.worst
        return -counted, 0 if row.finished_runs else -row.rounds, score if sweep.score.direction == "min" else -score

    ends = journal.ends
    return sorted(
        (setting_row(sweep, folder, t, ends.get(t.id, End(OPEN))) for t in journal.trials.values()), key=order
    )


def score_text(stat: Stat) -> str:
    """The score of a setting as text: `0.912 ± 0.004`; a dash if no seed has a score."""
    if not math.isfinite(stat.mean):
        return "-"
    return f"{stat.mean:.4g}" + (f" ± {stat.std:.2g}" if math.isfinite(stat.std) else "")


# -- as files ----------------------------------------------------------------------------------------------------


def write_tables(sweep: Sweep, folder: Path, journal: Journal) -> list[SettingRow]:
    """Writes runs.csv and settings.csv; returns the settings, the best first."""
    rows = setting_rows(sweep, folder, journal)
    score = f"{sweep.score.score}:{sweep.score.metric}"
    runs: list[dict[str, Any]] = []
    settings: list[dict[str, Any]] = []
    for rank, row in enumerate(rows, 1):
        values = {key: row.trial.values.get(key, "") for key in sweep.space.keys}
        for run in row.runs:
            head = {"run": run.id, "setting": row.trial.setting, "seed": run.seed, **values}
            head |= {"state": run.state, "rounds": run.rounds, score: run.score, "seconds": f"{run.seconds:.3f}"}
            runs.append({**head, "reason": run.reason.replace("\n", " ")})
        head = {"rank": rank, "setting": row.trial.setting, **values, "seeds": len(row.runs)}
        settings.append({**head, "finished": row.finished_runs, "rounds": row.rounds, score: row.score.mean})
        settings[-1]["std"] = row.score.std
    runs.sort(key=lambda run: run["setting"])
    for name, table in (("runs.csv", runs), ("settings.csv", settings)):
        cells = [{key: _cell(value) for key, value in line.items()} for line in table]
        atomic_write(folder / name, csv_text(cells))
    return rows


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return json.dumps(value) if isinstance(value, (dict, list)) else value
