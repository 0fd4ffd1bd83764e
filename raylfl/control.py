"""A program's control over its runs: callbacks after each round, and how they end a run early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylfl.errors import RaylflError

if TYPE_CHECKING:
    from torch import Tensor

    from raylfl.config.load import Config


class StopRun(RaylflError):
    """Raised in a callback, ends the run after this round as early stopping does; its text is the reason."""


class Callback:
    """Is called by a run in the process that started it; the workers wait, so that a stop counts at once.

    An error raised in a callback ends the run; what was done is in its newest checkpoint, and can be resumed.
    """

    def on_run_start(self, config: Config, run_dir: Path) -> None:
        """Before the first round, or before the first that a resumed run adds."""

    def on_round_end(self, round: int, metrics: dict[str, Any], params: Tensor) -> bool | str | None:
        """After a round: its row of metrics.jsonl, and the parameters [d] after it, to be read only.

        True or a reason in words ends the run here, as a finished one; so does `raise StopRun(reason)`.
        """
        return None

    def on_run_end(self, result: Any) -> None:
        """After the last round, with the `Result` that `raylfl.run` returns."""


def reason_to_stop(callbacks: Sequence[Callback], metrics: dict[str, Any], params: Tensor) -> str | None:
    """Calls `on_round_end` of all callbacks; the first reason to end the run, if there is any."""
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
