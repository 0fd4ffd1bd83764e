"""The experiment of a run that is about to start, with what the theory says about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylfl.config.load import Config
from raylfl.errors import exits_as_errors
from raylfl.python import api
from raylfl.python.result import one_at_a_time

if TYPE_CHECKING:
    from raylfl.experiment.parts import Experiment


def prepare(config: Config) -> Experiment:
    """The checked experiment of a config; `local.lr={theory: PAPER}` is replaced by a number, in place.

    Weights of clients without effect are added to its warnings. Raises BadConfig for mistakes, and if no theorem of the
    paper gives a step size.
    """
    notes: list[str] = []
    if config.local.lr_by_theory is not None:
        from raylfl.theory.rate import resolve_rate

        with one_at_a_time(), exits_as_errors():
            notes = resolve_rate(config)
    experiment = api.checked(config)
    experiment.warnings.extend(notes)
    if config.top.weights != "uniform":
        from raylfl.theory.importance import unused_weights

        with one_at_a_time():
            experiment.warnings.extend(unused_weights(experiment))
    return experiment
