"""Population based training with seeded draws, which leaves complete runs unchanged."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import private_randomness


class SeededPBT(PopulationBasedTraining):
    """Ray Tune's PBT with two changes.

    Runs end at their last round (`rounds`), where Ray Tune would pause them and repeat their last rounds; a run that
    diverged earlier (its report has a `state`) may still take the state of another run. The run to copy and the
    mutations are functions of (seed, run, round), where Ray Tune draws from the global generators of Python and numpy.
    """

    def __init__(self, rounds: int, seed: int, time_attr: str, **options: Any):
        super().__init__(time_attr=time_attr, **options)
        self.rounds, self.seed, self.time = rounds, seed, time_attr

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result[self.time] >= self.rounds and "state" not in result:
            return TrialScheduler.CONTINUE
        with private_randomness(keyed_int(self.seed, f"pbt/{trial.config['trial']['id']}", result[self.time])):
            return super().on_trial_result(tune_controller, trial, result)
