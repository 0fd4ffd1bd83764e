"""Searchers that pass the trials of a stage to Ray Tune one by one: planned trials, or Optuna's proposals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from raylfl.report.runs import readable
from raylfl.tune.journal import Journal, Trial
from raylfl.tune.optuna_search import OptunaSettings
from raylfl.tune.slots import TrialSlots
from raylfl.tune.spec import Sweep
from raylfl.tune.trial import as_config


class PlannedSearcher(Searcher):
    """A searcher that gives planned trials to Ray Tune in their order, each as soon as a slot is free.

    slots: the limit on running trials.
    """

    def __init__(self, trials: Sequence[Trial], slots: TrialSlots):
        super().__init__()
        self.waiting, self.slots = list(trials), slots

    @property
    def complete(self) -> bool:
        """Whether all planned trials have been given to Ray Tune."""
        return not self.waiting

    def suggest(self, trial_id: str) -> Any:
        if self.complete:
            return Searcher.FINISHED
        if not self.slots.free or self.slots.reserved():
            return None
        self.slots.taken.add(trial_id)
        return as_config(self.next(trial_id))

    def next(self, trial_id: str) -> Trial:
        """Removes and returns the next trial to give to Ray Tune.

        trial_id: Ray Tune's id for the trial.
        """
        return self.waiting.pop(0)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.slots.taken.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the journal holds all planned trials."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, see `save`."""


class OptunaSearcher(PlannedSearcher):
    """A searcher that gives the settings proposed by Optuna to Ray Tune, one trial per seed.

    folder: the sweep's folder, which contains the trials' run directories. left: the open trials of an interrupted
    sweep, which come first.
    """

    def __init__(self, sweep: Sweep, journal: Journal, folder: Path, left: Sequence[Trial], slots: TrialSlots):
        super().__init__(left, slots)
        self.sweep, self.journal, self.folder = sweep, journal, folder
        self.settings = OptunaSettings(sweep.space, sweep.draws_from, sweep.plain)
        self._ids: dict[str, Trial] = {}  # by Ray Tune's id
        known = {trial.setting: trial.values for trial in journal.of_stage(0)}
        for setting, values in known.items():
            self.settings.remember(setting, values)
        self.next_setting = max(known, default=-1) + 1
        self.to_propose = max(sweep.options.samples - len(known), 0)
        for setting in known:
            self._learn(setting)

    @property
    def complete(self) -> bool:
        return not self.to_propose and not self.waiting

    def next(self, trial_id: str) -> Trial:
        if not self.waiting:
            values = self.settings.propose(self.next_setting)
            self.waiting = self.sweep.trials(0, self.next_setting, values)
            self.journal.plan(*self.waiting)
            self.next_setting, self.to_propose = self.next_setting + 1, self.to_propose - 1
        self._ids[trial_id] = super().next(trial_id)
        return self._ids[trial_id]

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Notes the end of a trial; after the last seed of a setting, reports the setting's mean score to Optuna.

        The score is read from the run directories, because `TrialLog` writes the journal later.
        """
        super().on_trial_complete(trial_id, result, error)
        trial = self._ids.pop(trial_id)
        self._learn(trial.setting, trial)

    def _learn(self, setting: int, ended: Trial | None = None) -> None:
        journal, score = self.journal, self.sweep.score
        seeds = [trial for trial in journal.of_stage(0) if trial.setting == setting]
        if not all(trial == ended or trial.id in journal.ends for trial in seeds):
            return
        runs = [(readable(self.folder / trial.id), trial.rounds) for trial in seeds]
        scores = [score.ranked(score.of(run)) for run, rounds in runs if run is not None and run.complete(rounds)]
        self.settings.learn(setting, sum(scores) / len(scores) if scores else None)
