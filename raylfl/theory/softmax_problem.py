"""Softmax (logistic) regression as a problem of N clients: its minimiser, and bounds that hold for all x.

The gradient of a sample's loss is the Kronecker product (p - e_y) (x) a, with p the predicted probabilities, e_y the
label as a unit vector, and a the input with a 1 appended; |p - e_y|^2 <= 2. The norm of the data's part of grad f_i is
therefore at most B_i = sqrt(2) mean_j |a_j|, for all x. The decay's part is the same for all clients, so that the B_i
alone bound differences of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raylfl.core.population import Floats, Ints
from raylfl.theory import softmax

LARGEST = 2 * 10**7  # numbers (inputs times classes) up to which the minimiser is computed


@dataclass(frozen=True)
class SoftmaxProblem:
    """The problem F = sum_i w_i f_i of softmax regression.

    shards: (inputs [n_i, p], labels [n_i]) of each client; classes: their number; decay: the weight decay; weights:
    w [N].
    """

    shards: Sequence[tuple[Floats, Ints]]
    classes: int
    decay: float
    weights: Floats

    @cached_property
    def smoothness(self) -> Floats:
        """The smoothness L_i of every f_i, for all x [N]."""
        return np.array([softmax.smoothness(rows, self.decay) for rows, _ in self.shards])

    @cached_property
    def slopes(self) -> Floats:
        """Bounds B_i of the norm of the data's part of grad f_i, for all x [N]."""
        means = [float(np.linalg.norm(softmax.extended(rows), axis=1).mean()) for rows, _ in self.shards]
        return np.array([np.sqrt(2) * mean for mean in means])

    @cached_property
    def noise(self) -> Floats:
        """Bounds 2 mean_j |a_j|^2 of the variance of a sample's gradient, [N]."""
        return 2 * np.array([np.square(softmax.extended(rows)).sum(axis=1).mean() for rows, _ in self.shards])

    def deviation(self) -> Floats:
        """Bounds of |grad f_i - grad F| [N], for all x."""
        others = float(self.weights @ self.slopes) - self.weights * self.slopes
        return np.asarray((1 - self.weights) * self.slopes + others)

    def dissimilarity(self, weights: Floats) -> float:
        """The bound sqrt(sum_i w_i B_i^2) of sqrt(sum_i w_i |grad f_i - grad F|^2), for all x (zeta at beta = 0)."""
        return float(np.sqrt(weights @ np.square(self.slopes)))

    def values(self, x: Floats) -> tuple[Floats, Floats]:
        """(f_i(x) [N], grad f_i(x) [N, d])."""
        found = [softmax.value_and_gradient(x, *shard, self.classes, self.decay) for shard in self.shards]
        return np.array([value for value, _ in found]), np.stack([gradient for _, gradient in found])

    @cached_property
    def optimum(self) -> Floats | None:
        """The minimiser x* [d]; None for large problems, and without decay, as there may be no minimiser."""
        numbers = sum(rows.size for rows, _ in self.shards) * self.classes
        if self.decay <= 0 or numbers > LARGEST:
            return None
        from scipy.optimize import minimize

        def objective(x: Floats) -> tuple[float, Floats]:
            values, gradients = self.values(x)
            return float(self.weights @ values), self.weights @ gradients

        width = self.shards[0][0].shape[1] + 1
        options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
        found = minimize(objective, np.zeros(self.classes * width), jac=True, method="L-BFGS-B", options=options)
        return np.asarray(found.x)
