"""The limit of a method on the quadratics of FedACS [3], measured and predicted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raylfl.report.runs import Floats, RunRecord

DISTANCE = "global/distance_abs"


@dataclass(frozen=True)
class Limit:
    """The limit of a method on the quadratics of fig. 4, from one run; tail: the number of last rounds averaged."""

    run: RunRecord
    tail: int

    @cached_property
    def optimum(self) -> Floats:
        """The optimum x* = mean of the E_m, [d]."""
        from raylfl.reproduce.probes.quadratics import TracedQuadratics

        return TracedQuadratics(**self.run.config["data"]["init_args"]).optimum().numpy()

    @cached_property
    def mean(self) -> Floats:
        """The mean of x_r over the rounds of the tail, [d]."""
        columns = [self.run.column(f"test/x{j}") for j in range(len(self.optimum))]
        mean: Floats = np.stack(columns)[:, -self.tail :].mean(axis=1)
        return mean

    @property
    def bias(self) -> float:
        """The bias |mean - x*|, where `mean` is over the tail."""
        return float(np.linalg.norm(self.mean - self.optimum))

    @property
    def distance(self) -> float:
        """The mean of |x_r - x*| over the rounds of the tail; it contains the bias and the noise of single rounds."""
        return float(self.run.column(DISTANCE)[-self.tail :].mean())

    @cached_property
    def predicted(self) -> Floats | None:
        """The minimiser [d] of the surrogate sum_i Omega_i f_i, [3] eqs. (4)-(6); None if Omega is not known.

        If the system changes, Omega is the mean over the rounds of the tail. The prediction is exact for
        eta -> 0; at eta > 0 a client moves by 1 - (1-eta)^K instead of eta K.
        """
        from raylfl.config.load import load_config
        from raylfl.diagnostics.surrogate import fixed_point, surrogate_weights
        from raylfl.experiment import assemble
        from raylfl.reproduce.probes.quadratics import TracedQuadratics
        from raylfl.runtime.round.plan import Planner

        experiment = assemble(load_config(self.run.config))
        planner, data = Planner(experiment), TracedQuadratics(**self.run.config["data"]["init_args"])
        total = np.zeros(experiment.world.count)
        for r in self.run.rounds[-self.tail :]:
            c = planner.system(int(r))
            marginals = planner.marginals(c, {})
            expected = None if marginals is None else experiment.algorithm.expected_coefficients(c, marginals)
            if expected is None:
                return None
            total += expected * c.a_norm
        omega = surrogate_weights(total, np.ones(len(total)))
        return fixed_point(omega, lambda w: data.optimum(w.tolist()).numpy())

    @property
    def predicted_bias(self) -> float:
        """The predicted bias |predicted - x*|; nan if there is no prediction."""
        return float("nan") if self.predicted is None else float(np.linalg.norm(self.predicted - self.optimum))

    @property
    def surprise(self) -> float:
        """The prediction error |mean - predicted|; nan if there is no prediction."""
        return float("nan") if self.predicted is None else float(np.linalg.norm(self.mean - self.predicted))
