"""The limit of a method on the quadratics of FedACS [3] (Weng, Ren, Xiao & Skoglund 2025), measured and predicted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raylfl.core.arrays import Floats
from raylfl.report.runs import RunRecord

DISTANCE = "global/distance_abs"


@dataclass(frozen=True)
class Limit:
    """The limit of a method on the quadratics of FedACS, fig. 4, measured in one run and predicted.

    The objectives are f_m(x) = |x - E_m|^2 / 2. tail: the number of last rounds that are averaged.
    """

    run: RunRecord
    tail: int

    @cached_property
    def optimum(self) -> Floats:
        """The optimum x* [d], the mean of the clients' minimisers E_m."""
        from papers.probes.quadratics import TracedQuadratics

        return TracedQuadratics(**self.run.config["data"]["init_args"]).optimum().numpy()

    @cached_property
    def mean(self) -> Floats:
        """The mean of the server model x_r over the last rounds, [d]."""
        columns = [self.run.column(f"test/x{j}") for j in range(len(self.optimum))]
        mean: Floats = np.stack(columns)[:, -self.tail :].mean(axis=1)
        return mean

    @property
    def bias(self) -> float:
        """The bias: the distance of `mean` from the optimum."""
        return float(np.linalg.norm(self.mean - self.optimum))

    @property
    def distance(self) -> float:
        """The mean of |x_r - x*| over the last rounds, which contains the bias and the noise of single rounds."""
        return float(self.run.column(DISTANCE)[-self.tail :].mean())

    @cached_property
    def predicted(self) -> Floats | None:
        """The minimiser [d] of the surrogate objective sum_i Omega_i f_i; None if Omega is unknown.

        It is the limit that FedACS, eqs. (4)-(6), predicts. If the system changes, Omega is the mean over the last
        rounds. The prediction is exact for a step size eta -> 0. At eta > 0 a client with K local steps covers the
        fraction 1 - (1-eta)^K of the distance to its minimiser, instead of eta K.
        """
        from raylfl.config.load import load_config
        from raylfl.diagnostics.surrogate import surrogate_weights
        from raylfl.experiment import assemble
        from papers.probes.quadratics import TracedQuadratics
        from raylfl.runtime.round.plan import Planner

        experiment = assemble(load_config(self.run.config))
        planner, data = Planner(experiment), TracedQuadratics(**self.run.config["data"]["init_args"])
        total = np.zeros(experiment.world.count)
        for r in self.run.rounds[-self.tail :]:
            c = planner.system(int(r))
            expected = planner.expected_coefficients(c, {})
            if expected is None:
                return None
            total += expected * c.a_norm
        omega = surrogate_weights(total, np.ones(len(total)))
        return data.optimum(omega.tolist()).numpy()

    @property
    def predicted_bias(self) -> float:
        """The distance of `predicted` from the optimum; nan if there is no prediction."""
        return float("nan") if self.predicted is None else float(np.linalg.norm(self.predicted - self.optimum))

    @property
    def prediction_error(self) -> float:
        """The distance of `mean` from `predicted`; nan if there is no prediction."""
        return float("nan") if self.predicted is None else float(np.linalg.norm(self.mean - self.predicted))
