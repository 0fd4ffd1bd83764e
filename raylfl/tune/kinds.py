"""A Ray Tune scheduler for each kind of setting: no setting is stopped because its data or its system are harder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import FIFOScheduler

from raylfl.tune.journal import Trial
from raylfl.tune.score import SCORE, TIME
from raylfl.tune.space import comparable


class SchedulerByKind(FIFOScheduler):
    """Passes each trial to the scheduler of its kind: settings of the same algorithm in the same scenario.

    build: creates the scheduler of a kind. earlier: the trials that an interrupted sweep has begun, each with its
    reports (rounds done, score). They are repeated here, so that the past decisions stand and the continued trials are
    compared with all settings.
    """

    def __init__(self, build: Callable[[], Any], earlier: Iterable[tuple[Trial, Iterable[tuple[int, float]]]] = ()):
        super().__init__()  # type: ignore[no-untyped-call]
        self.schedulers: dict[str, Any] = defaultdict(build)
        for trial, reports in earlier:
            scheduler, named = self._of({"id": trial.id, "values": trial.values})
            scheduler.on_trial_add(None, named)
            for done, score in reports:
                scheduler.on_trial_result(None, named, {TIME: done, SCORE: score})

    def _of(self, fields: Mapping[str, Any]) -> tuple[Any, Any]:
        """The scheduler of a trial, and the trial under its id in the journal, which a resumed sweep keeps.

        fields: the fields of the trial (`raylfl.tune.journal.Trial`).
        """
        return self.schedulers[comparable(fields["values"])], SimpleNamespace(trial_id=fields["id"])

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        scheduler, named = self._of(trial.config["setting"])
        scheduler.on_trial_add(tune_controller, named)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        scheduler, named = self._of(trial.config["setting"])
        return str(scheduler.on_trial_result(tune_controller, named, result))

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        scheduler, named = self._of(trial.config["setting"])
        scheduler.on_trial_complete(tune_controller, named, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        scheduler, named = self._of(trial.config["setting"])
        scheduler.on_trial_remove(tune_controller, named)
