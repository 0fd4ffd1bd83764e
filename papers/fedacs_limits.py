"""The limit of a method on the quadratics of FedACS [3] (Weng, Ren, Xiao & Skoglund 2025), measured and predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from raylfl.core.arrays import Floats
from raylfl.report.runs import RunRecord

DISTANCE = "global/distance_abs"


DIM = 10


def limit_measures(tail: int) -> dict[str, Callable[[RunRecord], float]]:
    """The measures of a run, means over the last `tail` rounds: the distance |x_r - x*|, and each coordinate of x_r."""
    names = {"distance": DISTANCE} | {f"x{j}": f"test/x{j}" for j in range(DIM)}
    return {name: partial(_mean, metric=metric, tail=tail) for name, metric in names.items()}


def _mean(run: RunRecord, metric: str, tail: int) -> float:
    return float(run.column(metric)[-tail:].mean())


@dataclass(frozen=True)
class Limit:
    """The limit of a method on the quadratics of FedACS, fig. 4, measured in one run and predicted.

    The objectives are f_m(x) = |x - E_m|^2 / 2. config: of the run. tail: the number of last rounds that are averaged.
    distance: the mean of |x_r - x*| over them, which contains the bias and the noise of single rounds. mean: that of
    x_r, [d].
    """

    config: Mapping[str, Any]
    tail: int
    distance: float
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
        """The minimiser [d] of the surrogate objective sum_i Omega_i f_i; None if Omega is unknown.

        It is the limit that FedACS, eqs. (4)-(6), predicts. If the system changes, Omega is the mean over the last
        rounds. The prediction is exact for a step size eta -> 0. At eta > 0 a client with K local steps covers the
        fraction 1 - (1-eta)^K of the distance to its minimiser, instead of eta K.
        """
        from raylfl.diagnostics.surrogate import surrogate_weights
        from raylfl.experiment import assemble
        from raylfl.runtime.round.plan import Planner

        experiment = assemble(self.resolved)
        planner, rounds = Planner(experiment), self.resolved.resolved["rounds"]
        total = np.zeros(experiment.world.count)
        for r in range(rounds - self.tail, rounds):
            c = planner.system(int(r))
            expected = planner.expected_coefficients(c, {})
            if expected is None:
                return None
            total += expected * c.a_norm
        omega = surrogate_weights(total, np.ones(len(total)))
        predicted: Floats = self.data.optimum(omega.tolist()).numpy()
        return predicted

    @property
    def predicted_bias(self) -> float:
        """The distance of `predicted` from the optimum; nan if there is no prediction."""
        return float("nan") if self.predicted is None else float(np.linalg.norm(self.predicted - self.optimum))

    @property
    def prediction_error(self) -> float:
        """The distance of `mean` from `predicted`; nan if there is no prediction."""
        return float("nan") if self.predicted is None else float(np.linalg.norm(self.mean - self.predicted))
