"""The progress log of a running sweep: one line per ended trial, and regular lines about running trials."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.tune import Callback

from raylfl.errors import Say
from raylfl.runtime.ray.failures import ACTOR_LOST, reason_of_loss
from raylfl.tune.score import TIME

PULSE_SECONDS = 30.0  # time between lines about running trials


class TrialLog(Callback):
    """A Ray Tune callback that records and prints the ends of trials, and prints running trials every PULSE_SECONDS.

    end: records the end of a trial and returns a line about it (`SweepRun.end`). say: called with one line for the
    user. rounds: the length of the runs. total: the number of trials. done: of those that have ended so far.
    """

    def __init__(self, end: Callable[..., str], say: Say, rounds: int, total: int, done: int):
        self.end, self.say, self.rounds, self.total, self.done = end, say, rounds, total, done
        self.ended: set[str] = set()
        self._said_at = time.monotonic()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(str(trial), trial.last_result)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(str(trial), trial.last_result, cause(trial))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._say(f"{trial}  failed ({cause(trial)}): tried again from its newest checkpoints")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() - self._said_at < PULSE_SECONDS:
            return
        running = [trial for trial in trials if trial.status == "RUNNING"]
        if not running:
            self._say("waiting for the trials' processes to start")
            return
        done = {trial: trial.last_result.get(TIME) for trial in running[:4]}
        progress = ", ".join(str(trial) if n is None else f"{trial} {n}/{self.rounds}" for trial, n in done.items())
        self._say(f"{len(running)} running: {progress}{', ...' if len(running) > 4 else ''}")

    def _end(self, trial_id: str, last: Mapping[str, Any] | None, error: str = "") -> None:
        self.ended.add(trial_id)
        line = self.end(trial_id, last, error)
        self.done += 1
        self._say(line)

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        self.say(f"[{self.done}/{self.total}] {text}")


def cause(trial: Any) -> str:
    """The cause of a Ray Tune trial's failure: the last line of the error text that Ray Tune wrote to a file.

    If the trial's process was lost, a description of the loss instead.
    """
    if trial.pickled_error_file is not None and Path(trial.pickled_error_file).exists():
        with suppress(Exception):  # a user's exception that can be pickled, but not loaded
            error = pickle.loads(Path(trial.pickled_error_file).read_bytes())
            if isinstance(error, ACTOR_LOST):
                return reason_of_loss(error)
    path = Path(trial.local_path or ".") / "error.txt"
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip()] if path.exists() else []
    return lines[-1] if lines else "its process was lost"
