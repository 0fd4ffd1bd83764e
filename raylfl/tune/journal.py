"""What a sweep remembers: which trials there are, and how each ended. `trials.jsonl`, only ever appended to.

A trial's own state is its run directory; the journal says what else a resumed sweep must know: the values that
were drawn, and which runs a scheduler stopped or a divergence ended, so that they are not taken up again.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raylfl.runtime.records.run_dir import read_rows
from raylfl.tune.space import Values

FINISHED, STOPPED, DIVERGED, FAILED = "finished", "stopped", "diverged", "failed"
OVER = (FINISHED, STOPPED, DIVERGED)  # a failed trial is tried again when the sweep is resumed


@dataclass(frozen=True)
class Trial:
    """One run of a sweep. id: of its run directory; trials of one `setting` differ in their seed alone.

    parent: the run of an earlier stage that this one continues, if any.
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
    """How a trial ended: finished, stopped (by the scheduler), diverged or failed, and why."""

    state: str
    reason: str = ""


def ends(folder: Path) -> dict[str, str]:
    """How the trials of the sweep in this directory ended, as far as they have: id -> state; empty without a sweep."""
    path = folder / "trials.jsonl"
    return {row["id"]: row["state"] for row in (read_rows(path) if path.exists() else ()) if "state" in row}


class Journal:
    """The trials of a sweep directory, in the order in which they were planned, and their ends."""

    def __init__(self, folder: Path):
        self.path = folder / "trials.jsonl"
        self.trials: dict[str, Trial] = {}
        self.ends: dict[str, End] = {}
        if self.path.exists():
            self._heal()
            for row in read_rows(self.path):
                if "values" in row:
                    self.trials[row["id"]] = Trial(**row)
                else:
                    self.ends[row["id"]] = End(row["state"], row["reason"])

    def _heal(self) -> None:
        """Cut off a last line that a crash left half written, so that the next one starts afresh."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with open(self.path, "r+b") as file:
                file.truncate(whole)

    def plan(self, *trials: Trial) -> None:
        """Remember new trials; those already known are passed over."""
        new = [trial for trial in trials if trial.id not in self.trials]
        self.trials |= {trial.id: trial for trial in new}
        self._append([asdict(trial) for trial in new])

    def end(self, trial_id: str, state: str, reason: str = "") -> None:
        self.ends[trial_id] = End(state, reason)
        self._append([{"id": trial_id, "state": state, "reason": reason}])

    def of_stage(self, stage: int) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.stage == stage]

    def is_over(self, trial: Trial) -> bool:
        """Whether there is nothing left to do for it."""
        return self.state(trial) in OVER

    def state(self, trial: Trial) -> str:
        """How it ended; "" if it has not."""
        return self.ends[trial.id].state if trial.id in self.ends else ""

    def _append(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        with open(self.path, "a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())
