"""Common parts of the tests: clients of 1, 2, ... samples, processes by name, a table of their draws."""

import numpy as np

from raylfl.core.population import Population
from raylfl.heterogeneity.participation import PARTICIPATION
from raylfl.heterogeneity.world import RunContext

COUNT, ROUNDS = 12, 1000
Z = 5.0  # standard errors: once in two million comparisons by chance, and keys are fixed
SPREAD = {"linspace": [0.05, 0.95]}


def world(count=COUNT, seed=0, rounds=ROUNDS):
    return RunContext(seed, Population.of(np.arange(1, count + 1)), rounds)


def build(name, **options):
    return PARTICIPATION.get(name).cls(**options)


def draws_of(process, where, rounds=ROUNDS):
    """s_i of every round, [R, N]."""
    table = np.zeros((rounds, where.count))
    for r in range(rounds):
        drawn = process.draw(r, where)
        table[r, drawn.cohort] = drawn.draws
    return table
