"""The interface of a stage of a sweep that its searchers and its log use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from raylfl.tune.journal import Journal, Trial
from raylfl.tune.spec import Sweep


class StageView(Protocol):
    """A running stage of a sweep (`raylfl.tune.stage.StageRun`)."""

    sweep: Sweep
    journal: Journal
    index: int
    rounds: int
    total: int

    def say(self, text: str) -> None:
        """Reports one line to the user."""

    def is_complete(self, trial: Trial) -> bool:
        """Whether the trial has finished with an undamaged directory."""

    def score(self, trial: Trial) -> float | None:
        """The trial's score; None before it has one."""

    def end(self, trial: Trial, last: Mapping[str, Any] | None, error: str = "") -> str:
        """Records the end of a trial; returns a line about it for the user.

        last: its last report; error: the reason if it failed.
        """
