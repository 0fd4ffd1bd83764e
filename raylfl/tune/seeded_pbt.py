"""Population based training (PBT) with seeded draws; runs that have reached their last round are not changed."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import private_randomness
from raylfl.tune.score import SCORE, TIME


class SeededPBT(PopulationBasedTraining):
    """Ray Tune's PBT with two changes.

    First, a run that has reached round `rounds` ends; Ray Tune would pause the run and repeat its last rounds. The
    exception is a run that diverged (its report has the key `state`): a copy of another run may still replace it.
    Second, the run to copy and the mutations are functions of (seed, run, round); Ray Tune would draw them from the
    global generators of Python and numpy.
    """

    def __init__(self, rounds: int, seed: int, **options: Any):
        super().__init__(time_attr=TIME, metric=SCORE, mode="max", log_config=False, **options)
        self.rounds, self.seed = rounds, seed

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result[TIME] >= self.rounds and "state" not in result:
            return TrialScheduler.CONTINUE
        with private_randomness(keyed_int(self.seed, f"pbt/{trial.config['trial']['id']}", result[TIME])):
            return super().on_trial_result(tune_controller, trial, result)
