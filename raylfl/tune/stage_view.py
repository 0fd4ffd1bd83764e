"""The interface through which searchers and the progress log use a stage of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from raylfl.tune.journal import Journal, Trial
from raylfl.tune.spec import Sweep


class StageView(Protocol):
    """A running stage of a sweep, implemented by `raylfl.tune.stage.StageRun`.

    index: the number of the stage. rounds: the length of its runs. total: the number of its trials.
    """

    sweep: Sweep
    journal: Journal
    index: int
    rounds: int
    total: int

    def say(self, text: str) -> None:
        """Prints one line for the user."""

    def is_complete(self, trial: Trial) -> bool:
        """Whether the trial's run has finished and its directory is not damaged."""

    def score(self, trial: Trial) -> float | None:
        """The trial's score in the metric's unit (`Score.of`); None if it has none yet."""

    def end(self, trial: Trial, last: Mapping[str, Any] | None, error: str = "") -> str:
        """Writes the end of a trial to the journal; returns a line about it for the user.

        last: the trial's last report to Ray Tune, if any. error: the reason if the trial failed, else "".
        """
