"""Optuna's settings handed to Ray Tune as trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.tune.search import Searcher

from raylfl.tune.journal import Trial
from raylfl.tune.optuna_search import OptunaSettings
from raylfl.tune.trial import as_config

if TYPE_CHECKING:
    from raylfl.tune.stage import StageRun


class Proposals(Searcher):
    """Optuna's settings as trials, a setting's seeds one after the other; open ones of an earlier run first."""

    def __init__(self, stage: StageRun, left: Sequence[Trial]):
        super().__init__()
        self.stage, self.waiting = stage, list(left)
        self.settings = OptunaSettings(stage.sweep.space, stage.sweep.draws_from, stage.sweep.plain)
        self._ids: dict[str, Trial] = {}  # by Ray Tune's id
        known = {trial.setting: trial.values for trial in stage.journal.of_stage(0)}
        for setting, values in known.items():
            self.settings.remember(setting, values)
        self.asked = len(known)
        for setting in known:
            self._learn(setting)

    @property
    def complete(self) -> bool:
        return self.asked >= self.stage.sweep.options.samples and not self.waiting

    def suggest(self, trial_id: str) -> Any:
        if not self.waiting:
            if self.asked >= self.stage.sweep.options.samples:
                return Searcher.FINISHED
            self.waiting = self.stage.sweep.trials(0, self.asked, self.settings.propose(self.asked))
            self.stage.journal.plan(*self.waiting)
            self.asked += 1
        self._ids[trial_id] = self.waiting.pop(0)
        return as_config(self._ids[trial_id])

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """The journal is written after this, in the watcher: what counts here is the run itself."""
        trial = self._ids.pop(trial_id)
        self._learn(trial.setting, trial)

    def _learn(self, setting: int, ended: Trial | None = None) -> None:
        journal, score = self.stage.journal, self.stage.sweep.score
        seeds = [trial for trial in journal.of_stage(0) if trial.setting == setting]
        if not all(journal.is_over(t) or t == ended or t.id in journal.ends for t in seeds):
            return
        scores = [score.ranked(self.stage.score(t)) for t in seeds if self.stage.is_complete(t)]
        self.settings.learn(setting, sum(scores) / len(scores) if scores else None)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the journal has all that was proposed."""

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""
