"""The progress of a run after a round, and callbacks: hooks of a run, which may end it early."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylfl.errors import RaylflError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from raylfl.config.load import Config
    from raylfl.experiment.parts import Experiment


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def interactive() -> bool:
    """Whether a person watches the output: in a terminal, or in a notebook."""
    return sys.stdout.isatty() or in_notebook()


@dataclass(frozen=True)
class Progress:
    """The progress of a run after a round.

    metrics: the row of this round in metrics.jsonl. messages: texts for the user since the previous round. params: all
    parameters after the round, as one vector [d]; None in a run without callbacks. resumed: whether
    the run was resumed. A resumed run first yields the rounds before its checkpoint again, with params None.
    """

    experiment: Experiment
    run_dir: Path
    metrics: dict[str, Any]
    messages: list[str]
    params: torch.Tensor | None = None
    resumed: bool = False

    @property
    def round(self) -> int:
        """The number of the round, from 0."""
        return int(self.metrics["round"])


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
