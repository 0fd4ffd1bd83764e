"""The journal of a sweep, trials.jsonl: an append-only list of its trials and their ends.

The state of a trial is its run directories. The journal adds two facts for a resumed sweep: the values that were drawn
or proposed, and the trials that must not be continued, because the scheduler stopped them or their runs diverged.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from raylfl.runtime.records.lines import read_rows
from raylfl.tune.space import Values

FINISHED, STOPPED, DIVERGED, FAILED = "finished", "stopped", "diverged", "failed"
OVER = (FINISHED, STOPPED, DIVERGED)  # final states; a failed trial is repeated when the sweep is resumed


@dataclass(frozen=True)
class Trial:
    """A setting in a stage of a sweep: one run for each seed.

    id: its name. stage: the number of its stage. setting: the number of its setting. seeds: the seeds of its runs.
    rounds: the length of the runs. values: dotted config keys and their values. parents: for each seed, the id of the
    run of an earlier stage that this trial's run continues, None if there is none; empty in the first stage.
    """

    id: str
    stage: int
    setting: int
    seeds: list[int]
    rounds: int
    values: Values
    parents: list[str | None] = field(default_factory=list)

    def run_id(self, seed: int) -> str:
        """The name of the run directory of a seed."""
        return f"{self.id}-s{seed}"

    def parent(self, seed: int) -> str | None:
        """The id of the run of an earlier stage that the run of a seed continues; None if there is none."""
        return dict(zip(self.seeds, self.parents, strict=False)).get(seed)


@dataclass(frozen=True)
class End:
    """The end of a trial: its state (finished, stopped by the scheduler, diverged or failed) and the reason.

    diverged: the seeds whose runs diverged; the trial itself diverged if all did.
    """

    state: str
    reason: str = ""
    diverged: list[int] = field(default_factory=list)

    def of_run(self, seed: int) -> str:
        """The state in which the run of a seed ended."""
        return DIVERGED if seed in self.diverged else self.state


TRIAL, END = TypeAdapter(Trial), TypeAdapter(End)


def ends(folder: Path) -> dict[str, str]:
    """The final states of the ended runs of the sweep in this directory: run id -> state; empty without a sweep."""
    entries, _ = _entries(folder / "trials.jsonl")
    trials = {name: entry for name, entry in entries if isinstance(entry, Trial)}
    ended = [(trials[name], entry) for name, entry in entries if isinstance(entry, End) and name in trials]
    return {trial.run_id(seed): end.of_run(seed) for trial, end in ended for seed in trial.seeds}


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
        entries, self.damaged = _entries(self.path)
        for name, entry in entries:
            if isinstance(entry, Trial):
                self.trials[name] = entry
            else:
                self.ends[name] = entry

    def _heal(self) -> None:
        """Removes an incomplete last line, written before a crash, from the file."""
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            os.truncate(self.path, end)

    def plan(self, *trials: Trial) -> None:
        """Adds trials to the journal and its file; trials with a known id are skipped."""
        new = [trial for trial in trials if trial.id not in self.trials]
        self.trials |= {trial.id: trial for trial in new}
        self._append([asdict(trial) for trial in new])

    def end(self, trial_id: str, state: str, reason: str = "", diverged: Sequence[int] = ()) -> None:
        self.ends[trial_id] = End(state, reason, list(diverged))
        self._append([{"id": trial_id, **asdict(self.ends[trial_id])}])

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
    lines = read_rows(path)
    entries = {number: _entry(row) for number, row in zip(lines.numbers, lines.rows, strict=True)}
    bad = [number for number, entry in entries.items() if entry is None]
    return [entry for entry in entries.values() if entry is not None], sorted([*lines.damaged, *bad])


def _entry(row: dict[str, Any]) -> tuple[str, Trial | End] | None:
    """The pair (trial id, entry) of a parsed line; None if the line's checksum, keys or types are wrong."""
    if row.pop("check", None) != _check(row) or not isinstance(row.get("id"), str):
        return None
    try:
        return row["id"], (TRIAL if "values" in row else END).validate_python(row)
    except ValidationError:
        return None


def _check(row: dict[str, Any]) -> str:
    """The CRC-32 checksum of a line's content, as eight hexadecimal digits."""
    return f"{zlib.crc32(json.dumps(row, sort_keys=True).encode()):08x}"
