"""ASHA over settings: the seeds of a setting continue or stop together, by their mean score at each rung.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, Alg. 2, with one bracket for each
algorithm in each scenario (data, model, participation, ...). A rung is a number of rounds at which settings are
compared. Ray Tune's scheduler decides trial by trial: with several seeds it would stop some seeds of a setting, finish
others, and rank settings by different numbers of seeds. Here a seed that reaches a rung is paused until all other seeds
of its setting have reached it; another trial runs in the meantime.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from raylfl.tune.score import SCORE, TIME, WORST
from raylfl.tune.slots import TrialSlots
from raylfl.tune.space import comparable

Scores = Iterable[tuple[int, float]]  # (rounds done, score so far), in order


class SettingAsha(FIFOScheduler):
    """ASHA over settings: a setting continues past a rung if its mean over seeds is in the best 1 / reduction so far.

    A rung is a number of rounds at which settings are compared: grace * reduction^k, below `rounds`. A seed that
    reaches a rung is paused until the other seeds of its setting reach it. Larger scores are better. grace: the first
    rung. rounds: the length of a run. seeds: the number of seeds of each setting. slots: the limit on running trials.
    Only settings of one kind (`comparable`: the same algorithm in the same scenario) are compared: no setting is
    stopped because its partition is harder.
    """

    def __init__(self, grace: int, reduction: float, rounds: int, seeds: int, slots: TrialSlots):
        super().__init__()  # type: ignore[no-untyped-call]
        count = max(0, math.ceil(math.log(max(rounds / grace, 1), reduction) - 1e-9))
        self.rungs = [math.ceil(grace * reduction**k - 1e-9) for k in range(count)]
        self.reduction, self.seeds, self.slots = reduction, seeds, slots
        self.passed: dict[tuple[int, int], bool] = {}  # (setting, rung) -> whether it continued
        self._scores: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)  # (setting, rung) -> seed -> score
        self._means: dict[tuple[str, int], list[float]] = defaultdict(list)  # (kind, rung) -> means of the settings
        self._lost: dict[int, int] = defaultdict(int)  # setting -> seeds that failed for good
        self._parked: dict[str, tuple[Any, int, int]] = {}  # trial id -> paused trial, its setting, its rung
        slots.reserved = self.waiting

    # -- called by Ray Tune -------------------------------------------------------------------------------------

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        own = trial.config["trial"]
        ended = "state" in result  # the run diverged or has invalid values, and ends anyway
        for rung in self._reached(result[TIME]):
            self._scores[own["setting"], rung].setdefault(own["seed"], result[SCORE])
            on = self._decide(own, rung)
            if ended or on:
                continue
            if on is None:
                self._parked[trial.trial_id] = trial, own["setting"], rung
                self.slots.taken.discard(trial.trial_id)
                return TrialScheduler.PAUSE
            return TrialScheduler.STOP
        return TrialScheduler.CONTINUE

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Notes that a seed has failed finally; its setting is then judged by the mean over the other seeds."""
        own = trial.config["trial"]
        self._lost[own["setting"]] += 1
        for rung in self.rungs:
            if self._scores.get((own["setting"], rung)):
                self._decide(own, rung)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self._parked.pop(trial.trial_id, None)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The trial that Ray Tune starts or continues next; None: none can be.

        It is a paused trial whose setting continues, if there is one and a slot is free; otherwise a new trial. Also
        stops paused trials whose setting does not continue.
        """
        for trial, setting, rung in list(self._parked.values()):
            on = self.passed.get((setting, rung))
            if trial.status != "PAUSED" or on is None:
                continue
            if not on:
                tune_controller.stop_trial(trial)
            elif self.slots.free:
                del self._parked[trial.trial_id]
                self.slots.taken.add(trial.trial_id)
                return trial
        return next((trial for trial in tune_controller.get_trials() if trial.status == "PENDING"), None)

    def waiting(self) -> bool:
        """Whether there is a paused trial whose setting continues past the rung; new trials then wait."""
        return any(self.passed.get((setting, rung)) for _, setting, rung in self._parked.values())

    # -- rungs -------------------------------------------------------------------------------------------------

    def _reached(self, done: int) -> list[int]:
        return [rung for rung in self.rungs if rung <= done]

    def _decide(self, own: Mapping[str, Any], rung: int) -> bool | None:
        """Whether the setting of a trial continues past the rung; None while not all of its seeds have reached it.

        own: the trial's fields, as in its Ray Tune config. Seeds that have failed finally do not count.
        """
        place = own["setting"], rung
        if place not in self.passed and len(self._scores[place]) >= self.seeds - self._lost[own["setting"]]:
            self._enter(own, rung, None)
        return self.passed.get(place)

    def _enter(self, own: Mapping[str, Any], rung: int, on: bool | None) -> None:
        """Decides whether a setting continues past the rung, and adds its mean score to the means at the rung.

        own: the fields of a trial of the setting. on: the decision, if it was made before the sweep was interrupted;
        None: decide now.
        """
        place, kind = (own["setting"], rung), (comparable(own["values"]), rung)
        mean = float(np.mean(list(self._scores[place].values())))
        before = self._means[kind]
        cutoff = np.percentile(before, 100 * (1 - 1 / self.reduction)) if before else -math.inf
        self.passed[place] = bool(mean >= cutoff) if on is None else on
        before.append(mean)

    # -- resumed sweeps ----------------------------------------------------------------------------------------

    def replay(self, runs: Iterable[tuple[Mapping[str, Any], Scores, str]]) -> None:
        """Restores the decisions of an interrupted sweep.

        runs: for each trial, its fields, its pairs (rounds done, score), and its final state or "". A setting continued
        past a rung if one of its seeds has done more rounds than the rung. A setting was stopped at a rung if one of
        its seeds was stopped there. Other decisions are made when the seeds report again.
        """
        known = [(own, list(scores), state) for own, scores, state in runs]
        for own, scores, state in known:
            for rung in self.rungs:
                first = next((score for done, score in scores if done >= rung), None)
                first = WORST if first is None and state == "diverged" else first
                if first is not None:
                    self._scores[own["setting"], rung][own["seed"]] = first
        for own, scores, state in known:
            done = scores[-1][0] if scores else 0
            for rung in self._reached(done):
                stopped = state == "stopped" and rung == self._reached(done)[-1]
                if (own["setting"], rung) not in self.passed and (stopped or done > rung):
                    self._enter(own, rung, not stopped)
