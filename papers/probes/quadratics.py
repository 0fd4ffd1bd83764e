"""The quadratics of FedACS, with the server's parameters logged in every evaluation as `test/x0`, `test/x1`, ...

Their mean over many rounds estimates the limit of a method. The mean of |x_r - x*| would also contain the noise of
single rounds.
"""

from typing import Any

from raylfl.data.base import tensors
from raylfl.data.synthetic import Quadratics
from raylfl.models.problem import Quadratic


class TracedQuadratics(Quadratics):
    """The data `quadratics` with a test set of one arbitrary sample, without which runs are not evaluated."""

    def __init__(self, num_clients: int = 30, dim: int = 10, seed: int = 0):
        super().__init__(num_clients, dim, seed)
        self.test_dataset = tensors(self.centres[:1], self.centres[:1], self.centres[:1, 0])


class TracedQuadratic(Quadratic):
    """The model `quadratic`, which logs each of its parameters when it is evaluated."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        for j, value in enumerate(self.x.tolist()):
            self.log(f"x{j}", value)
