"""What the parts of a stage (its proposals, its log) see of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from raylfl.tune.journal import Journal, Trial
from raylfl.tune.spec import Sweep


class StageView(Protocol):
    """A stage of a sweep under way (`raylfl.tune.stage.StageRun`)."""

    sweep: Sweep
    journal: Journal
    index: int
    rounds: int
    total: int

    def say(self, text: str) -> None:
        """Tells a line."""

    def is_complete(self, trial: Trial) -> bool:
        """Whether the trial has finished with an undamaged directory."""

    def score(self, trial: Trial) -> float | None:
        """The trial's score; None before it has one."""

    def end(self, trial: Trial, last: Mapping[str, Any] | None, error: str = "") -> str:
        """Writes down how the trial ended; a line for the log."""
