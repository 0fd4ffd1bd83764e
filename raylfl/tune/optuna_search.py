"""Settings proposed by Optuna, an optional dependency; the mean over a setting's seeds is one observation.

Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019. The sampler is Optuna's
default (TPE), seeded. A key whose conditions (`when`) do not hold gets no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raylfl.core.keyed import keyed_int
from raylfl.extras import require
from raylfl.tune.space import Domain, Space, Values


def require_optuna() -> None:
    """Checks that Optuna is installed; raises MissingExtra."""
    require("optuna", what="search=optuna", instead="search=random")


class OptunaSettings:
    """Optuna's proposals of settings, based on the scores reported so far; larger scores are better.

    seed: the seed of Optuna's sampler. base: the config, for conditions on its values. Raises MissingExtra if Optuna is
    not installed.
    """

    def __init__(self, space: Space, seed: int, base: Mapping[str, Any]):
        require_optuna()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.base = space, base
        sampler = optuna.samplers.TPESampler(seed=keyed_int(seed, "optuna") % 2**32)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self._proposed: dict[int, Any] = {}

    def propose(self, setting: int) -> Values:
        """The values of new setting number `setting`, as Optuna proposes them."""
        trial = self._proposed[setting] = self.study.ask()
        return self.space.point(lambda key, domain: suggest(trial, self.name(key, domain), domain), self.base)

    def learn(self, setting: int, score: float | None) -> None:
        """Reports the mean score of setting number `setting` to Optuna; None: the setting failed."""
        import optuna

        trial = self._proposed.pop(setting)
        if score is None:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self.study.tell(trial, score)

    def remember(self, setting: int, values: Values) -> None:
        """Restores setting number `setting`, proposed before the sweep was interrupted; `learn` reports its score."""
        named: dict[str, Any] = {}

        def note(key: str, domain: Domain) -> Any:
            chosen = values[key]
            named[self.name(key, domain)] = domain.args.index(chosen) if domain.kind == "choice" else chosen
            return chosen

        self.space.point(note, self.base)
        self.study.enqueue_trial(named)
        self.propose(setting)  # proposes the values in the queue

    def name(self, key: str, domain: Domain) -> str:
        """The name in Optuna of the parameter for a config key and one of its domains.

        Each alternative domain of a key is a separate parameter, because their ranges differ.
        """
        domains = self.space.keys[key]
        return key if len(domains) == 1 else f"{key}#{domains.index(domain)}"


def suggest(trial: Any, name: str, domain: Domain) -> Any:
    """The value that an Optuna trial suggests for a domain.

    name: the name of the parameter in Optuna.
    """
    if domain.kind == "choice":  # by position, because a value may be a whole group of keys
        return domain.args[trial.suggest_categorical(name, list(range(len(domain.args))))]
    low, high = domain.args
    if domain.kind == "randint":
        return trial.suggest_int(name, int(low), int(high) - 1)
    return domain.rounded(trial.suggest_float(name, low, high, log=domain.kind == "loguniform"))
