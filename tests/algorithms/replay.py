"""Runs of the package on the oracles' problems and recorded rounds, with the same numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raylfl.core.algorithm import Algorithm
from raylfl.core.local_rule import LocalRule
from raylfl.core.population import Population, Round, SystemInfo
from raylfl.testing import recorded_round, simulate
from tests import oracles


def population_of(problem: oracles.Problem) -> Population:
    """The clients of a problem."""
    return Population(problem.sizes, problem.weights)


def gradient_of(problem: oracles.Problem) -> Callable[[int, Tensor, int, int], Tensor]:
    """Client i's gradient at x in step t of round r; of all its data for t < 0."""

    def gradient(i: int, x: Tensor, r: int, t: int) -> Tensor:
        at = x.numpy()
        return torch.from_numpy(problem.full_gradient(i, at) if t < 0 else problem.gradient(i, at, r, t))

    return gradient


def recorded(rounds: Sequence[oracles.Round], population: Population, rule: LocalRule | None = None) -> list[Round]:
    """The oracles' rounds in the package's form."""
    return [
        recorded_round(
            r.index,
            r.cohort,
            population,
            steps=r.steps_all,
            lr=r.lr,
            draws=r.draws,
            received=r.received,
            failure=r.q,
            inclusion=r.p,
            rule=rule,
        )
        for r in rounds
    ]


def beforehand(
    weights: np.ndarray, failure: np.ndarray, a_norm: np.ndarray, available: np.ndarray | None = None, size: int = 3
) -> SystemInfo:
    """Conditions of a round with eta_1 = 0.1."""
    n = len(weights)
    there = np.ones(n, dtype=bool) if available is None else available
    return SystemInfo(0, Population(np.ones(n, dtype=np.int64), weights), failure, a_norm, there, 0.1, size)


def states(
    algorithm: Algorithm,
    problem: oracles.Problem,
    rounds: Sequence[oracles.Round],
    x0: np.ndarray,
    rule: LocalRule | None = None,
) -> list[dict[str, Any]]:
    """The server after each round."""
    population, start = population_of(problem), torch.from_numpy(x0)
    played = recorded(rounds, population, rule)
    return [server for server, _ in simulate(algorithm, gradient_of(problem), played, start, population, rule)]


def models(*arguments: Any, **options: Any) -> np.ndarray:
    """x after each round, [rounds, d]."""
    return np.stack([server["x"].numpy() for server in states(*arguments, **options)])


def setting(seed: int, **options: Any) -> tuple[oracles.Problem, list[oracles.Round], np.ndarray]:
    """A noisy random quadratic in R^9, 14 rounds of 6 clients (losses, an empty one, unequal K), a start."""
    problem = oracles.random_quadratics(seed, count=6, dim=9, noise=0.1)
    rounds = oracles.random_rounds(seed, count=14, clients=6, **options)
    return problem, rounds, np.random.default_rng(seed).standard_normal(9)
