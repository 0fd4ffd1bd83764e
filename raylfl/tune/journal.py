"""The journal of a sweep, trials.jsonl: an append-only list of its trials and their ends.

The state of a trial is its run directory. The journal adds two facts for a resumed sweep: the values that were drawn,
and the trials that must not be continued, because the scheduler stopped them or they diverged.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from raylfl.runtime.records.lines import read_rows
from raylfl.tune.space import Values

FINISHED, STOPPED, DIVERGED, FAILED = "finished", "stopped", "diverged", "failed"
OVER = (FINISHED, STOPPED, DIVERGED)  # final states; a failed trial is repeated when the sweep is resumed


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    id: the name of its run directory. stage: the number of its stage. setting: the number of its setting; the trials of
    a setting differ only in their seed. rounds: the length of the run. values: dotted config keys and their values.
    parent: the id of the trial of an earlier stage that this one continues, if any.
    """

    id: str
    stage: int
    setting: int
    seed: int
    rounds: int
    values: Values
    parent: str | None = None


@dataclass(frozen=True)
class End:
    """The end of a trial: its state (finished, stopped by the scheduler, diverged or failed) and the reason."""

    state: str
    reason: str = ""


TRIAL, END = TypeAdapter(Trial), TypeAdapter(End)


def ends(folder: Path) -> dict[str, str]:
    """The final states of the ended trials of the sweep in this directory: id -> state; empty without a sweep."""
    found, _ = _entries(folder / "trials.jsonl")
    return {name: entry.state for name, entry in found if isinstance(entry, End)}


class Journal:
    """The journal of a sweep directory: its trials, in the order in which they were planned, and their ends.

    trials, ends: by trial id. damaged: the numbers of the lines that cannot be read or do not match their checksum. The
    sweep plans the trials of these lines again, and they continue from their run directories.
    """

    def __init__(self, folder: Path):
        self.path = folder / "trials.jsonl"
        self.trials: dict[str, Trial] = {}
        self.ends: dict[str, End] = {}
        if self.path.exists():
            self._heal()
        found, self.damaged = _entries(self.path)
        for name, entry in found:
            if isinstance(entry, Trial):
                self.trials[name] = entry
            else:
                self.ends[name] = entry

    def _heal(self) -> None:
        """Removes an incomplete last line, written before a crash, from the file."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)

    def plan(self, *trials: Trial) -> None:
        """Adds trials to the journal and its file; trials with a known id are skipped."""
        new = [trial for trial in trials if trial.id not in self.trials]
        self.trials |= {trial.id: trial for trial in new}
        self._append([asdict(trial) for trial in new])

    def end(self, trial_id: str, state: str, reason: str = "") -> None:
        self.ends[trial_id] = End(state, reason)
        self._append([{"id": trial_id, "state": state, "reason": reason}])

    def of_stage(self, stage: int) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.stage == stage]

    def is_over(self, trial: Trial) -> bool:
        """Whether the trial finished, was stopped or diverged; a failed trial is repeated when the sweep is resumed."""
        return self.state(trial) in OVER

    def state(self, trial: Trial) -> str:
        """The state in which the trial ended (finished, stopped, diverged, failed); "" if it has not ended."""
        return self.ends[trial.id].state if trial.id in self.ends else ""

    def _append(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        with open(self.path, "a") as file:
            file.write("".join(json.dumps({**row, "check": _check(row)}) + "\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())


def _entries(path: Path) -> tuple[list[tuple[str, Trial | End]], list[int]]:
    """Reads a journal file; returns its entries in order, as pairs (trial id, entry), and numbers of damaged lines."""
    found = read_rows(path)
    entries = {number: _entry(row) for number, row in zip(found.numbers, found.rows, strict=True)}
    bad = [number for number, entry in entries.items() if entry is None]
    return [entry for entry in entries.values() if entry is not None], sorted([*found.damaged, *bad])


def _entry(row: dict[str, Any]) -> tuple[str, Trial | End] | None:
    """The pair (trial id, entry) of a parsed line; None if the line's checksum, keys or types are wrong."""
    check = row.pop("check", None)  # lines of older sweeps have no checksum
    if check not in (None, _check(row)) or not isinstance(row.get("id"), str):
        return None
    try:
        return row["id"], (TRIAL if "values" in row else END).validate_python(row)
    except ValidationError:
        return None


def _check(row: dict[str, Any]) -> str:
    """The CRC-32 checksum of a line's content, as eight hexadecimal digits."""
    return f"{zlib.crc32(json.dumps(row, sort_keys=True).encode()):08x}"
