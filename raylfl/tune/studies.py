"""Settings proposed by Ray Tune's OptunaSearch, with one study for each cell: each point of the space's grids.

Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019. The sampler is Optuna's
default (TPE), seeded. An observation is a setting's mean score over its seeds. A key whose conditions (`when`) do not
hold gets no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.tune.search import Searcher

from raylfl.core.keyed import keyed, keyed_int
from raylfl.report.labels import canonical
from raylfl.tune.journal import Trial
from raylfl.tune.score import SCORE
from raylfl.tune.space import Domain, Values
from raylfl.tune.spec import Sweep, show

if TYPE_CHECKING:
    import optuna
    from ray.tune.search.optuna import OptunaSearch

NAME = "cell"  # of an Optuna study, which is alone in its storage
DRAWS = 1000  # random points that are drawn to find one that no trial has run


class Study:
    """The study of a cell: a sequence of settings, all with the cell's values, that Optuna proposes.

    trials: the cell's trials so far. scores: the mean score of each of them that has ended, by trial id; the others are
    proposed again, before new settings.
    """

    def __init__(self, sweep: Sweep, number: int, cell: Values, trials: Sequence[Trial], scores: Mapping[str, float]):
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.cell, self.base = sweep.space, cell, sweep.plain
        self.seed, self.number = sweep.draws_from, number
        self.proposed = {canonical(trial.values) for trial in trials}
        self.waiting = [trial for trial in trials if trial.id not in scores]
        self.left = sweep.options.samples - len(trials)  # settings to propose
        # another seed after each interruption: a sampler with the same seed would repeat its first draws
        sampler = optuna.samplers.TPESampler(seed=keyed_int(self.seed, "optuna", number, len(trials)) % 2**32)
        storage = optuna.storages.InMemoryStorage()
        direction = optuna.study.StudyDirection[f"{sweep.score.direction}IMIZE".upper()]
        self.study = optuna.create_study(storage=storage, study_name=NAME, direction=direction)
        options: dict[str, Any] = {"metric": SCORE, "mode": sweep.score.direction, "study_name": NAME}
        self.search: OptunaSearch = OptunaSearch(self._point, sampler=sampler, storage=storage, **options)
        for trial in trials:
            self.study.enqueue_trial(self._parameters(trial.values))
            self.search.suggest(trial.id)
            if trial.id in scores:
                self.search.on_trial_complete(trial.id, {SCORE: scores[trial.id]})

    def propose(self, trial_id: str) -> tuple[Values, str] | None:
        """The values of the next setting, and its id in `search`; None if no setting is left that no trial has run."""
        for observation in (trial_id, f"{trial_id}/unseen"):
            values: Values = (self.search.suggest(observation) or {})["values"]
            if canonical(values) not in self.proposed:
                self.proposed.add(canonical(values))
                return values, observation
            self.search.on_trial_complete(observation, error=True)  # not an observation
            if not self._enqueue_unseen():
                break
        return None

    def _enqueue_unseen(self) -> bool:
        """Enqueues a random setting that no trial has run as the next proposal; false if DRAWS draws find none."""
        for k in range(DRAWS):
            draws = keyed(self.seed, "optuna/unseen", self.number, len(self.proposed), k)

            def draw(key: str, domain: Domain, draws: np.random.Generator = draws) -> Any:
                return domain.draw(draws)

            values = self.space.point(self.cell, draw, self.base)
            if canonical(values) not in self.proposed:
                self.study.enqueue_trial(self._parameters(values))
                return True
        return False

    def _point(self, trial: optuna.Trial) -> dict[str, Values]:
        """Optuna's definition of the space by a run: the values of a setting, each suggested by an Optuna trial."""

        def suggest(key: str, domain: Domain) -> Any:
            name = self._name(key, domain)
            if domain.kind == "choice":  # by position, because a value may be a whole group of keys
                return domain.args[trial.suggest_categorical(name, list(range(len(domain.args))))]
            low, high = domain.args
            if domain.kind == "randint":
                return trial.suggest_int(name, int(low), int(high) - 1)
            return domain.round_value(trial.suggest_float(name, low, high, log=domain.kind == "loguniform"))

        return {"values": self.space.point(self.cell, suggest, self.base)}

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
        self._observed: dict[str, tuple[Study, str]] = {}  # Ray Tune's id -> (study, id in the study's search)

    @property
    def complete(self) -> bool:
        """Whether all settings have been given to Ray Tune."""
        return not any(study.waiting or study.left > 0 for study in self.studies)

    def suggest(self, trial_id: str) -> Any:
        while not self.complete:
            interrupted = next((study for study in self.studies if study.waiting), None)
            if interrupted is not None:
                trial = interrupted.waiting.pop(0)
                self._observed[trial_id] = interrupted, trial.id
                return self.run.config(trial)
            study = max(self.studies, key=lambda study: study.left)
            proposed = study.propose(trial_id)
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

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        study, observation = self._observed[trial_id]
        study.search.on_trial_result(observation, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        study, observation = self._observed[trial_id]
        study.search.on_trial_complete(observation, result, error)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the journal has the settings, and the run directories the scores."""

    restore = save
