"""Callbacks: hooks that a run calls at its start, after each round and at its end; they may end the run early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylfl.errors import RaylflError

if TYPE_CHECKING:
    from torch import Tensor

    from raylfl.config.load import Config


class StopRun(RaylflError):
    """Raised by a callback to end the run after this round, as early stopping does; its text is the reason."""


class Callback:
    """Hooks of a run, called in the process that started the run; the workers wait until a hook returns.

    An error raised in a hook ends the run with this error, and the run can be resumed from its newest checkpoint.
    StopRun in `on_round_end` ends the run as finished.
    """

    def on_run_start(self, config: Config, run_dir: Path) -> None:
        """Called before the first round, or before the first new round of a resumed run."""

    def on_round_end(self, round: int, metrics: dict[str, Any], params: Tensor) -> bool | str | None:
        """Called after each round; returning True or a reason ends the run as finished, like `raise StopRun(reason)`.

        metrics: the round's row of metrics.jsonl; params: the parameters [d] after the round, not to be changed.
        """
        return None

    def on_run_end(self, result: Any) -> None:
        """Called after the last round, with the `Result` that `raylfl.run` returns."""


def reason_to_stop(callbacks: Sequence[Callback], metrics: dict[str, Any], params: Tensor) -> str | None:
    """Calls `on_round_end` of all callbacks; returns the first reason to end the run, None if there is none."""
    reasons = []
    for callback in callbacks:
        name = type(callback).__name__
        try:
            answer = callback.on_round_end(int(metrics["round"]), metrics, params)
        except StopRun as stop:
            answer = str(stop) or True
        if answer:
            reasons.append(f"{name}: {answer}" if isinstance(answer, str) else f"{name} ended the run")
    return reasons[0] if reasons else None
