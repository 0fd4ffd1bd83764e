"""ASHA among what may be compared: one bracket for each algorithm in each world."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from raylfl.tune.space import comparable


class ComparableAsha(FIFOScheduler):
    """Ray Tune's ASHA, one for each kind of setting: what is tuned competes, algorithms and worlds do not.

    Else a harder partition would be stopped for being harder, and a slow starter for the algorithm that it is.
    """

    def __init__(self, **options: Any):
        super().__init__()
        self.options = options
        self._kinds: dict[str, ASHAScheduler] = {}

    def _of(self, trial: Any) -> ASHAScheduler:
        name = comparable(trial.config["trial"]["values"])
        if name not in self._kinds:
            self._kinds[name] = ASHAScheduler(**self.options)
        return self._kinds[name]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._of(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict) -> str:
        return self._of(trial).on_trial_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict) -> None:
        self._of(trial).on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self._of(trial).on_trial_remove(tune_controller, trial)
