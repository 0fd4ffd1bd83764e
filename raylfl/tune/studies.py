"""Settings proposed by Optuna, with one study for each cell: each point of the space's grids.

Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019. The sampler is Optuna's
default (TPE), seeded. An observation is a setting's mean score over its seeds. A key whose conditions (`when`) do not
hold gets no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState
from ray.tune.search import Searcher

from raylfl.core.keyed import keyed, keyed_int
from raylfl.report.labels import canonical
from raylfl.tune.journal import Trial
from raylfl.tune.score import SCORE
from raylfl.tune.space import Domain, Values
from raylfl.tune.spec import Sweep, show

DRAWS = 1000  # random points that are drawn to find one that no trial has run


class Study:
    """The study of a cell: a sequence of settings, all with the cell's values, that Optuna proposes.

    trials: the cell's trials so far. scores: the mean score of each of them that has ended, by trial id; the others are
    proposed again (`waiting`), before new settings.
    """

    def __init__(self, sweep: Sweep, number: int, cell: Values, trials: Sequence[Trial], scores: Mapping[str, float]):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.cell, self.base = sweep.space, cell, sweep.plain
        self.seed, self.number = sweep.draws_from, number
        self.proposed = {canonical(trial.values) for trial in trials}
        self.left = sweep.options.samples - len(trials)  # settings to propose
        # another seed after each interruption: a sampler with the same seed would repeat its first draws
        sampler = optuna.samplers.TPESampler(seed=keyed_int(self.seed, "optuna", number, len(trials)) % 2**32)
        direction = optuna.study.StudyDirection[f"{sweep.score.direction}imize".upper()]
        self.study = optuna.create_study(sampler=sampler, direction=direction)
        self.waiting: list[tuple[Trial, optuna.Trial]] = []
        for trial in trials:
            observation = self._observe(trial.values)
            if trial.id in scores:
                self.study.tell(observation, scores[trial.id])
            else:
                self.waiting.append((trial, observation))

    def propose(self) -> tuple[Values, optuna.Trial] | None:
        """The values of the next setting, and its observation; None if no setting is left that no trial has run."""
        observation = self.study.ask()
        values = self._point(observation)
        if canonical(values) in self.proposed:
            self.study.tell(observation, state=TrialState.FAIL)
            unseen = self._unseen()
            if unseen is None:
                return None
            values, observation = unseen, self._observe(unseen)
        self.proposed.add(canonical(values))
        return values, observation

    def _unseen(self) -> Values | None:
        """A random setting that no trial has run; None if DRAWS draws find none."""
        for k in range(DRAWS):
            draws = keyed(self.seed, "optuna/unseen", self.number, len(self.proposed), k)

            def draw(key: str, domain: Domain, draws: np.random.Generator = draws) -> Any:
                return domain.draw(draws)

            values = self.space.point(self.cell, draw, self.base)
            if canonical(values) not in self.proposed:
                return values
        return None

    def _observe(self, values: Values) -> optuna.Trial:
        """An observation of given values."""
        self.study.enqueue_trial(self._parameters(values))
        observation = self.study.ask()
        self._point(observation)
        return observation

    def _point(self, observation: optuna.Trial) -> Values:
        """The values of a setting, each suggested by Optuna."""

        def suggest(key: str, domain: Domain) -> Any:
            name = self._name(key, domain)
            if domain.kind == "choice":  # by position, because a value may be a whole group of keys
                return domain.args[observation.suggest_categorical(name, list(range(len(domain.args))))]
            low, high = domain.args
            if domain.kind == "randint":
                return observation.suggest_int(name, int(low), int(high) - 1)
            return domain.round_value(observation.suggest_float(name, low, high, log=domain.kind == "loguniform"))

        return self.space.point(self.cell, suggest, self.base)

    def _parameters(self, values: Values) -> dict[str, Any]:
        parameters: dict[str, Any] = {}

        def note(key: str, domain: Domain) -> Any:
            value = values[key]
            parameters[self._name(key, domain)] = domain.args.index(value) if domain.kind == "choice" else value
            return value

        self.space.point(self.cell, note, self.base)
        return parameters

    def _name(self, key: str, domain: Domain) -> str:
        """The name in Optuna of the parameter for a key and one of its domains, whose ranges differ."""
        domains = self.space.keys[key]
        return key if len(domains) == 1 else f"{key}#{domains.index(domain)}"


class Studies(Searcher):
    """The searcher of a sweep with search=optuna: the cells take turns, `samples` settings each.

    run: the `SweepRun`, which has the trials so far and plans proposed ones. scores: as of `Study`, of all cells.
    """

    def __init__(self, run: Any, scores: Mapping[str, float]):
        sweep = run.sweep
        super().__init__(metric=SCORE, mode=sweep.score.direction)
        self.run, trials = run, run.trials
        self.studies = [
            Study(sweep, number, cell, [t for t in trials if cell.items() <= t.values.items()], scores)
            for number, cell in enumerate(sweep.cells())
        ]
        self.next_setting = max((trial.setting for trial in trials), default=-1) + 1
        self._observed: dict[str, tuple[Study, optuna.Trial]] = {}  # by Ray Tune's id of the trial

    @property
    def complete(self) -> bool:
        """Whether all settings have been given to Ray Tune."""
        return not any(study.waiting or study.left > 0 for study in self.studies)

    def suggest(self, trial_id: str) -> Any:
        while not self.complete:
            interrupted = next((study for study in self.studies if study.waiting), None)
            if interrupted is not None:
                trial, observation = interrupted.waiting.pop(0)
                self._observed[trial_id] = interrupted, observation
                return self.run.config(trial)
            study = max(self.studies, key=lambda study: study.left)
            proposed = study.propose()
            if proposed is None:
                cell = f" with {show(study.cell)}" if study.cell else ""
                samples = self.run.sweep.options.samples
                self.run.say(f"all settings{cell} have run: {study.left} fewer than samples={samples}")
                study.left = 0
                continue
            values, observation = proposed
            self.next_setting, study.left = self.next_setting + 1, study.left - 1
            self._observed[trial_id] = study, observation
            return self.run.config(self.run.plan(self.next_setting - 1, values))
        return Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        study, observation = self._observed.pop(trial_id)
        if error or not result:
            study.study.tell(observation, state=TrialState.FAIL)
        else:
            study.study.tell(observation, result[SCORE])

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the journal has the settings, and the run directories the scores."""

    restore = save
