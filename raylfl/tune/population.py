"""Population based training that leaves a complete run as it is."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler


class Population(PopulationBasedTraining):
    """Ray Tune's, which would at the last round, too, pause a run to let others on, and then repeat its last rounds.

    rounds: of a run. One that ended before them (it diverged, and says so by `state`) may still take another's.
    """

    def __init__(self, rounds: int, time_attr: str, **options: Any):
        super().__init__(time_attr=time_attr, **options)
        self.rounds, self.time = rounds, time_attr

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict) -> str:
        if result[self.time] >= self.rounds and "state" not in result:
            return TrialScheduler.CONTINUE
        return super().on_trial_result(tune_controller, trial, result)
