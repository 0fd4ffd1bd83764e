"""The limit of a method on the quadratics of FedACS [3] (Weng, Ren, Xiao & Skoglund 2025), measured and predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from papers.statistics import effective_count
from raylfl.core.arrays import Floats
from raylfl.report.runs import RunRecord

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


@dataclass(frozen=True)
class Limit:
    """The limit of a method on the quadratics of FedACS, fig. 4, measured in one run and predicted.

    The objectives are f_m(x) = |x - E_m|^2 / 2. config: of the run. tail: the number of last rounds that are averaged.
    mean: that of x_r over them, [d], with the standard error `noise`.
    """

    config: Mapping[str, Any]
    tail: int
    noise: float
    mean: Floats

    @cached_property
    def resolved(self) -> Any:
        from raylfl.config.load import load_config

        return load_config(self.config)

    @cached_property
    def data(self) -> Any:
        from papers.probes.quadratics import TracedQuadratics

        return TracedQuadratics(**self.resolved.resolved["data"]["init_args"])

    @cached_property
    def optimum(self) -> Floats:
        """The optimum x* [d], the mean of the clients' minimisers E_m."""
        optimum: Floats = self.data.optimum().numpy()
        return optimum

    @property
    def bias(self) -> float:
        """The bias: the distance of `mean` from the optimum."""
        return float(np.linalg.norm(self.mean - self.optimum))

    @cached_property
    def predicted(self) -> Floats | None:
        """The limit [d] of E[x_r] at the run's step size that eq. 39 of FedACS predicts.

        If the system changes, the matrices M and vectors v of eqs. 34-35 are averaged over the last rounds. None for a
        method whose coefficients are unknown or that keeps old updates, and for local steps with momentum or a decaying
        learning rate, which eq. 33 does not have.
        """
        from raylfl.experiment.assemble import assemble
        from raylfl.runtime.round.plan import Planner
        from raylfl.theory.fedacs import mean_step
        from raylfl.theory.quadratic import QuadraticProblem

        experiment = assemble(self.resolved)
        if experiment.rule.momentum or experiment.rule.lr_schedule.over_steps(1) != 1.0:
            return None
        centres = self.data.centres.double().numpy()
        count, dim = centres.shape
        hessians = np.broadcast_to(np.eye(dim), (count, dim, dim)).copy()
        problem = QuadraticProblem(hessians, centres, np.zeros(count), np.full(count, 1 / count))
        planner, rounds = Planner(experiment), self.resolved.resolved["rounds"]
        steps_of: dict[bytes, tuple[Floats, Floats]] = {}
        matrix, vector = np.zeros((dim, dim)), np.zeros(dim)
        for r in range(max(rounds - self.tail, 0), rounds):
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

    @property
    def predicted_bias(self) -> float:
        """The distance of `predicted` from the optimum; nan if there is no prediction."""
        return float("nan") if self.predicted is None else float(np.linalg.norm(self.predicted - self.optimum))

    @property
    def prediction_error(self) -> float:
        """The distance of `mean` from `predicted`; nan if there is no prediction."""
        return float("nan") if self.predicted is None else float(np.linalg.norm(self.mean - self.predicted))
