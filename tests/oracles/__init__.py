"""Independent reference of every algorithm: dense float64 numpy, read from the papers and the specification.

It imports nothing from the tested package, and follows the papers literally rather than fast. All runs start from
simulate(name, problem, rounds, x0, local, **options). State keys are the papers' symbols: `x`, `y`, `v`, ... are server
vectors [d]; keys that end in `_i` hold one row a client, by id ([N, d] or [N]). All arrays are the state after the
round, never changed later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.oracles.averaging import (
    History,
    cafedavg,
    coefficients,
    fedacs,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fednova,
    fedprox,
    fedsgd,
    fedyogi,
    optimal_probabilities,
    optimal_sampling,
)
from tests.oracles.consistency import biased_fixed_point, calibrated_lr, chi2, fedacs_probabilities, surrogate_weights
from tests.oracles.focus import focus
from tests.oracles.intervals import fedau, fedawe
from tests.oracles.local import PLAIN, Local, a_norms, a_vector, local_model
from tests.oracles.minnorm import fedaware, fedmgda, min_norm_weights
from tests.oracles.problem import Array, Logistic, Problem, Quadratics, distances, random_logistic, random_quadratics
from tests.oracles.rounds import Round, full_rounds, random_rounds
from tests.oracles.sequential import centralized, local_only, sfl
from tests.oracles.variance import feddyn, fedvarp, mifa, scaffnew, scaffold

ALGORITHMS: dict[str, Callable[..., History]] = {
    "cafedavg": cafedavg,
    "centralized": centralized,
    "fedacs": fedacs,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedau": fedau,
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedaware": fedaware,
    "fedawe": fedawe,
    "feddyn": feddyn,
    "fedmgda": fedmgda,
    "fednova": fednova,
    "fedprox": fedprox,
    "fedsgd": fedsgd,
    "fedvarp": fedvarp,
    "fedyogi": fedyogi,
    "focus": focus,
    "local_only": local_only,
    "mifa": mifa,
    "optimal_sampling": optimal_sampling,
    "scaffnew": scaffnew,
    "scaffold": scaffold,
    "sfl": sfl,
    "splitfed": fedavg,  # [2] App. A: the same updates, other messages
    "ssl": sfl,
}


def simulate(
    name: str, problem: Problem, rounds: Sequence[Round], x0: Array, local: Local = PLAIN, **options: Any
) -> History:
    """The state after every round, at least {"x": [d]}. Options: see the algorithm's function."""
    return ALGORITHMS[name](problem, rounds, x0, local, **options)


__all__ = [
    "ALGORITHMS",
    "PLAIN",
    "Array",
    "History",
    "Local",
    "Logistic",
    "Problem",
    "Quadratics",
    "Round",
    "a_norms",
    "a_vector",
    "biased_fixed_point",
    "calibrated_lr",
    "chi2",
    "coefficients",
    "distances",
    "fedacs_probabilities",
    "full_rounds",
    "local_model",
    "min_norm_weights",
    "optimal_probabilities",
    "random_logistic",
    "random_quadratics",
    "random_rounds",
    "simulate",
    "surrogate_weights",
]
