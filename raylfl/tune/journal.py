"""The journal of a sweep, trials.jsonl: an append-only list of its trials and of ends that their runs do not show.

The state of a trial is its run directories. The journal adds the values that were drawn or proposed, and the trials
that the scheduler stopped or that failed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from raylfl.execution.planned import DIVERGED as DIVERGED_FILE
from raylfl.runtime.records.lines import read_rows
from raylfl.tune.space import Values

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

        The runs are others if raylfl, or a class of the user, has changed since; the trial is then open again.
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
