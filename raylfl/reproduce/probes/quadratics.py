"""The quadratics of FedACS whose runs record the server's parameters in every evaluation: `test/x0`, `test/x1`, ...

The mean of x_r over many rounds estimates a method's limit; the mean of |x_r - x*| also contains the noise of rounds.
"""

from __future__ import annotations

from typing import Any

from raylfl.data.base import tensors
from raylfl.data.quadratics import Quadratics
from raylfl.models.problem import Quadratic


class TracedQuadratics(Quadratics):
    """The data `quadratics` with a test set of one arbitrary sample, without which there would be no evaluation."""

    def __init__(self, num_clients: int = 30, dim: int = 10, seed: int = 0):
        super().__init__(num_clients, dim, seed)
        self.test_dataset = tensors(self.centres[:1], self.centres[:1], self.centres[:1, 0])


class TracedQuadratic(Quadratic):
    """The model `quadratic`, whose evaluation logs the parameters by coordinate."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        for j, value in enumerate(self.x.tolist()):
            self.log(f"x{j}", value)
