"""Every registered algorithm against its independent re-implementation: all of the state, after every round.

tests/oracles is dense float64 numpy read from papers and specification; it shares no code with the package.
State that papers do not list (weights that are solved for in every round) is left out of both.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm, ServerState, State
from raylfl.core.client_rows import Table
from raylfl.core.local_rule import LocalRule, Schedule
from raylfl.testing import simulate
from tests import oracles
from tests.algorithms.replay import gradient_of, population_of, recorded
from tests.shares import also

N, D, ROUNDS = 5, 6, 7
TOLERANCE = 1e-10  # float64, a few rounds of a few steps: another order of summation leaves 1e-13


@dataclass(frozen=True)
class Case:
    """One algorithm with these options, and the oracle's names of the options, if different."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] | None = None

    @property
    def algorithm(self) -> Algorithm:
        return ALGORITHMS.get(self.name).cls(**self.options)

    def history(self, *arguments: Any) -> oracles.History:
        options = self.options if self.theirs is None else self.theirs
        return oracles.simulate(self.name, *arguments, **options)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])


RULES = ("mean", "weighted", "anonymous", "anonymous_uniform", "anonymous_importance", "full")
CASES = [
    Case("cafedavg", {"gamma": 0.7}),
    Case("centralized"),
    Case("fedacs", {"gamma": 0.7}),
    Case("fedacs", {"estimate": "ema"}, {}),
    Case("fedadagrad", {"gamma": 0.05, "tau": 0.01}),
    Case("fedadagrad", {"gamma": 0.05, "tau": 0.01, "b1": 0.5, "aggregate": "full"}),
    Case("fedadam", {"gamma": 0.05, "tau": 0.01}),
    Case("fedadam", {"gamma": 0.05, "tau": 0.01, "b1": 0.5, "b2": 0.7, "aggregate": "weighted"}),
    Case("fedau", {"gamma": 0.7}),
    Case("fedau", {"cutoff": 3}),
    Case("fedau", {"cutoff": 3, "normalize": True}),
    Case("fedavg", {"gamma": 0.7}),
    *[Case("fedavg", {"aggregate": rule}) for rule in RULES],
    Case("fedavgm", {"beta": 0.8, "gamma": 0.5}),
    Case("fedavgm", {"beta": 0.8, "aggregate": "anonymous"}),
    Case("fedaware", {"alpha": 0.3, "gamma": 0.8}),
    Case("fedaware", {"warmup": "fedavg", "aggregate": "weighted"}),
    Case("fedaware", {"normalize": True, "alpha": 0.3, "gamma": 0.1}),
    Case("fedawe", {"gamma": 0.7}),
    Case("feddyn", {"alpha": 0.4}),
    Case("fedmgda", {"eps": 1.0, "gamma": 0.1}),
    Case("fedmgda", {"eps": 0.2, "gamma": 0.1}),
    Case("fednova", {"gamma": 0.7}),
    Case("fednova", {"normalise": "sent"}),
    Case("fedprox", {"mu": 0.3, "gamma": 0.7}),
    Case("fedprox", {"mu": 2.0, "aggregate": "full"}),
    Case("fedsgd", {"gamma": 0.7, "aggregate": "weighted"}),
    Case("fedvarp", {"gamma": 0.7}),
    Case("fedvarp", {"lost": "reuse"}),
    Case("fedyogi", {"gamma": 0.05, "tau": 0.01}),
    Case("fedyogi", {"gamma": 0.05, "tau": 0.01, "b1": 0.5, "b2": 0.7, "aggregate": "anonymous"}),
    Case("focus"),
    Case("focus", {"gamma": 0.02}),
    Case("local_only"),
    Case("mifa", {"gamma": 0.7}),
    Case("mifa", {"gamma": 0.7, "memory": "gradients"}),
    Case("optimal_sampling", {"norms": "stale", "gamma": 0.7}),
    Case("optimal_sampling", {"norms": "fresh"}),
    Case("scaffnew"),
    Case("scaffnew", {"p": 0.3}),
    Case("scaffold", {"gamma": 0.7}),
    Case("scaffold", {"option": 1}),
    Case("scaffold", {"gamma": 0.7, "uplink": "update"}, {"gamma": 0.7}),
    Case("scaffold", {"momentum": 0.8, "variates": "model"}),
    Case("scaffold", {"gamma": 0.7, "divisor": 2.5}),
    Case("scaffold", {"variate_divisor": "received"}),
    Case("scaffold", {"variate_divisor": "received", "uplink": "update"}, {"variate_divisor": "received"}),
    Case("sfl"),
    Case("sfl", {"gamma": 0.7}),
    Case("splitfed", {"cut": "layer"}, {}),
    Case("ssl", {"cut": "layer"}, {}),
]

QUADRATICS = oracles.random_quadratics(1, N, D, noise=0.1)
LOGISTIC = oracles.random_logistic(3, N, features=2, classes=2, batch=4)
SETTINGS = [
    (LOGISTIC, oracles.random_rounds(3, ROUNDS, N)),  # partial and lossy
    (QUADRATICS, oracles.random_rounds(1, ROUNDS, N, size=7, with_replacement=True)),  # lossy, too
    (QUADRATICS, oracles.full_rounds(4, N, steps=3)),
]
SOLVERS = {
    "momentum": (oracles.Local(momentum=0.6), LocalRule(momentum=0.6)),
    "weight decay": (oracles.Local(weight_decay=0.3), LocalRule(weight_decay=0.3)),
    "clipping": (oracles.Local(clip_norm=0.5), LocalRule(clip_norm=0.5)),
    "falling rate": (
        oracles.Local(schedule=lambda t: 0.8**t),
        LocalRule(lr_schedule=Schedule("step_exponential", decay=0.8)),
    ),
    "all of it": (
        oracles.Local(0.6, 0.3, 0.5, lambda t: 0.8**t),
        LocalRule(0.1, Schedule("step_exponential", decay=0.8), 0.6, 0.3, 0.5),
    ),
}

# the papers' symbols, which the oracles use, and our names
SERVER = {"x": "x", "y": "y", "v": "v", "m": "m", "c": "c", "h": "h", "tau_i": "tau"}
COUNTERS = {"W_i": "weight", "S_i": "waited", "intervals_i": "intervals"}
TABLES = {"B_i": "memory", "m_i": "momenta", "seen_i": "momenta"}
CLIENTS = {"g_prev_i": "g_prev", "c_i": "variate", "h_i": "h", "x_i": "x"}
SOLVED_ANEW = {"lambda_i", "p", "norms_i"}  # of the round, not of the state; norms_i: see test_fedacs.py


def dense(symbol: str, server: ServerState, clients: dict[int, State], fresh: State) -> np.ndarray:
    """Our value of a symbol in the oracles' form: [d], or one row per client."""
    if symbol in SERVER or symbol in COUNTERS:
        return server[(SERVER | COUNTERS)[symbol]].numpy()
    if symbol in TABLES:
        table: Table = server[TABLES[symbol]]
        if symbol == "seen_i":
            return np.array([float(i in table) for i in range(N)])
        return table.rows(range(N)).numpy()
    name = CLIENTS[symbol]
    return np.concatenate([clients.get(i, fresh)[name].numpy() for i in range(N)])


def assert_same_history(
    case: Case,
    problem: oracles.Problem,
    rounds: list[oracles.Round],
    local: oracles.Local = oracles.PLAIN,
    rule: LocalRule | None = None,
) -> None:
    """All of the oracle's state after every round is ours."""
    x0 = np.random.default_rng(len(rounds)).standard_normal(problem.dim)
    start, population, algorithm = torch.from_numpy(x0), population_of(problem), case.algorithm
    ours = simulate(algorithm, gradient_of(problem), recorded(rounds, population, rule), start, population, rule)
    fresh = algorithm.init_clients(start, 1)
    for r, ((server, clients), theirs) in enumerate(zip(ours, case.history(problem, rounds, x0, local), strict=True)):
        for symbol in theirs.keys() - SOLVED_ANEW:
            np.testing.assert_allclose(
                dense(symbol, server, clients, fresh),
                theirs[symbol],
                rtol=TOLERANCE,
                atol=TOLERANCE,
                err_msg=f"{symbol} after round {r}",
            )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_follows_its_oracle(case: Case):
    for problem, rounds in SETTINGS:
        assert_same_history(case, problem, rounds)


def offered(case: Case, solver: str) -> bool:
    """Momentum is no option of methods that define their own local step."""
    return not (SOLVERS[solver][1].momentum and case.algorithm.own_step)


def with_solvers() -> Iterator[Any]:
    """Every case with every solver; the usual suite has all options at once, and each one of methods' own steps."""
    for case, solver in itertools.product(CASES, SOLVERS):
        if offered(case, solver):
            yield (pytest.param if solver == "all of it" or case.algorithm.own_step else also)(case, solver)


@pytest.mark.parametrize(("case", "solver"), list(with_solvers()), ids=str)
def test_it_follows_its_oracle_with_the_solver_s_options(case: Case, solver: str):
    local, rule = SOLVERS[solver]
    rounds = oracles.random_rounds(5, ROUNDS, N, with_replacement=True)
    assert_same_history(case, oracles.random_quadratics(5, N, D, noise=0.1), rounds, local, rule)


def test_no_algorithm_goes_unchecked():
    """Methods without a server have oracles of their own: tests/algorithms/test_graph.py."""
    served = {entry.name for entry in ALGORITHMS if not entry.cls.pattern.peers}
    assert {case.name for case in CASES} == served
