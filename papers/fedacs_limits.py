"""The limit of a method on the quadratics of FedACS [3] (Weng, Ren, Xiao & Skoglund 2025), measured and predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.statistics import effective_count
from raylfl.core.arrays import Floats
from raylfl.report.runs import RunRecord

if TYPE_CHECKING:
    from papers.probes.quadratics import TracedQuadratics

DISTANCE = "global/distance_abs"
DIM = 10


def limit_measures(tail: int) -> dict[str, Callable[[RunRecord], float]]:
    """The measures of a run over its last `tail` rounds: means of |x_r - x*| and of each coordinate of x_r; noise.

    noise: the standard error of the mean of x_r, as a length; correlated rounds count as fewer independent ones.
    """
    names = {"distance": DISTANCE} | {f"x{j}": f"test/x{j}" for j in range(DIM)}
    means = {name: partial(_mean, metric=metric, tail=tail) for name, metric in names.items()}
    return {"noise": partial(_noise, tail=tail), **means}


def _noise(run: RunRecord, tail: int) -> float:
    columns = [run.column(f"test/x{j}")[-tail:] for j in range(DIM)]
    return math.sqrt(sum(np.var(x, ddof=1) / effective_count(x) for x in columns))


def _mean(run: RunRecord, metric: str, tail: int) -> float:
    return float(run.column(metric)[-tail:].mean())


def data_of(config: Mapping[str, Any]) -> TracedQuadratics:
    """The data of a run with this config, a config for `load_config`."""
    from papers.probes.quadratics import TracedQuadratics
    from raylfl.config.load import load_config

    return TracedQuadratics(**load_config(config).resolved["data"]["init_args"])


def predicted_limit(config: Mapping[str, Any], tail: int) -> Floats | None:
    """The limit [d] of E[x_r] at the run's step size that eq. 39 of FedACS predicts, for f_m(x) = |x - E_m|^2 / 2.

    If the system changes, the matrices M and vectors v of eqs. 34-35 are averaged over the last `tail` rounds. None for
    a method whose coefficients are unknown or that keeps old updates, and for local steps with momentum or a decaying
    learning rate, which eq. 33 does not have.
    """
    from raylfl.config.load import load_config
    from raylfl.experiment.assemble import assemble
    from raylfl.runtime.round.plan import Planner
    from raylfl.theory.fedacs import mean_step
    from raylfl.theory.quadratic import QuadraticProblem

    loaded = load_config(config)
    experiment, rounds = assemble(loaded), loaded.resolved["rounds"]
    if experiment.rule.momentum or experiment.rule.lr_schedule.over_steps(1) != 1.0:
        return None
    centres = data_of(config).centres.double().numpy()
    count, dim = centres.shape
    hessians = np.broadcast_to(np.eye(dim), (count, dim, dim)).copy()
    problem = QuadraticProblem(hessians, centres, np.zeros(count), np.full(count, 1 / count))
    planner = Planner(experiment)
    steps_of: dict[bytes, tuple[Floats, Floats]] = {}
    matrix, vector = np.zeros((dim, dim)), np.zeros(dim)
    for r in range(max(rounds - tail, 0), rounds):
        c, (steps, _) = planner.system(r), planner.steps(r, planner.everyone)
        shares = planner.expected_coefficients(c, {})
        if shares is None:
            return None
        eta, prox = experiment.algorithm.step_length(c), experiment.algorithm.proximal
        key = shares.tobytes() + steps.tobytes() + np.float64(eta).tobytes()
        if key not in steps_of:
            steps_of[key] = mean_step(problem, shares, steps, eta, prox)
        matrix, vector = matrix + steps_of[key][0], vector + steps_of[key][1]
    return np.asarray(np.linalg.solve(matrix, vector), dtype=np.float64)
