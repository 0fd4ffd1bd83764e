"""Independent reference of every algorithm: dense float64 numpy, read from the papers and the specification.

It imports nothing from the tested package, and follows the papers literally rather than fast. All runs start from
simulate(name, problem, rounds, x0, local, **options). State keys are the papers' symbols: `x`, `y`, `v`, ... are server
vectors [d]; keys that end in `_i` hold one row a client, by id ([N, d] or [N]). All arrays are the state after the
round, never changed later.
"""
# ruff: noqa: F401 (names for the tests)

from collections.abc import Callable, Sequence
from typing import Any

from tests.oracles.averaging import (
    History,
    cafedavg,
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
from tests.oracles.local import PLAIN, Local, Run
from tests.oracles.minnorm import fedaware, fedmgda
from tests.oracles.problem import Array, Problem, Quadratics, distances, random_logistic, random_quadratics
from tests.oracles.rounds import Round, full_rounds, random_rounds
from tests.oracles.sequential import centralized, local_only, sfl
from tests.oracles.variance import feddyn, fedvarp, mifa, scaffnew, scaffold

METHODS = (
    *(cafedavg, centralized, fedacs, fedadagrad, fedadam, fedau, fedavg, fedavgm, fedaware, fedawe, feddyn, fedmgda),
    *(fednova, fedprox, fedsgd, fedvarp, fedyogi, focus, local_only, mifa, optimal_sampling, scaffnew, scaffold, sfl),
)
ALGORITHMS: dict[str, Callable[..., History]] = {method.__name__: method for method in METHODS}
ALGORITHMS |= {"splitfed": fedavg, "ssl": sfl}  # [2] App. A: the same updates, other messages


def simulate(
    name: str, problem: Problem, rounds: Sequence[Round], x0: Array, local: Local = PLAIN, **options: Any
) -> History:
    """The state after every round, at least {"x": [d]}. Options: see the algorithm's function."""
    return ALGORITHMS[name](Run(problem, rounds, x0, local), **options)
