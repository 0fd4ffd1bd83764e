"""SeededPBT based training that leaves a complete run as it is, and draws what a seed says."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import private_randomness


class SeededPBT(PopulationBasedTraining):
    """Ray Tune's, which would at the last round, too, pause a run to let others on, and then repeat its last rounds.

    rounds: of a run. One that ended before them (it diverged, and says so by `state`) may still take another's.
    seed: whom a run takes the state of, and how the values change, follows from it, the run and the round, given who
    is best by then; Ray Tune's draws come from Python's and numpy's global generators.
    """

    def __init__(self, rounds: int, seed: int, time_attr: str, **options: Any):
        super().__init__(time_attr=time_attr, **options)
        self.rounds, self.seed, self.time = rounds, seed, time_attr

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict) -> str:
        if result[self.time] >= self.rounds and "state" not in result:
            return TrialScheduler.CONTINUE
        with private_randomness(keyed_int(self.seed, f"pbt/{trial.config['trial']['id']}", result[self.time])):
            return super().on_trial_result(tune_controller, trial, result)
