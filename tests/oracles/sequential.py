"""SFL ([2]) and the two trivial references, centralized and local_only."""

from dataclasses import replace

import numpy as np

from tests.oracles.averaging import History, add_up, descend
from tests.oracles.local import Run, local_model
from tests.oracles.problem import Array, Problem
from tests.oracles.rounds import Round


def sfl(run: Run, *, gamma: float = 1.0) -> History:
    """[2] Alg. 1: the cohort in recorded order pi, client pi_m from the last received result.

    x_{r+1} = x_r - gamma (x_r - last); gamma = 1 is the last client's result.
    """

    def step(r: Round, x: Array) -> Array:
        travelling = x
        for i in r.arrived:
            travelling = local_model(run.problem, i, travelling, r, run.local)
        return gamma * (x - travelling)

    return descend(run, step)


class _Pooled(Problem):
    """F = sum_i w_i f_i as the only client of a problem."""

    def __init__(self, problem: Problem):
        self.problem, self.weights = problem, np.ones(1)
        self.sizes, self.dim = np.array([problem.sizes.sum()]), problem.dim

    def full_gradient(self, i: int, x: Array) -> Array:
        return self.problem.global_gradient(x)


def centralized(run: Run) -> History:
    """K full-batch steps on F a round, the largest K_i of the round's cohort."""
    problem, rounds, x0, local = run
    pooled, x, history = _Pooled(problem), x0.copy(), []
    for r in rounds:
        if r.arrived:
            k = max(r.steps)
            alone = replace(r, cohort=[0], draws=[1], received=[True], steps=[k], steps_all=[k], q=None, p=None)
            x = local_model(pooled, 0, x, alone, local)
        history.append({"x": x})
    return history


def local_only(run: Run) -> History:
    """Every client trains its own model when it takes part; x = sum_i w_i x_i is reported, never sent back.

    State: x, x_i [N, d].
    """
    problem, rounds, x0, local = run
    own, history = np.tile(x0, (problem.count, 1)), []
    for r in rounds:
        own = own.copy()
        for i in r.arrived:
            own[i] = local_model(problem, i, own[i], r, local)
        history.append({"x": add_up(w * model for w, model in zip(problem.weights, own, strict=True)), "x_i": own})
    return history
