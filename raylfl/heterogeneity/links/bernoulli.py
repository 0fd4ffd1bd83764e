"""Links that lose no upload, or each client's uploads with its own probability (FedACS's communication heterogeneity).

Weng, Ren, Xiao & Skoglund 2025, Sec. 2: client m fails with probability q_m. (Alg. 1 line 20 and eq. (22) print
Bernoulli(q) for success; 1 - q is meant.)
"""

from dataclasses import dataclass

import numpy as np

from raylfl.core.arrays import Floats, Ints
from raylfl.heterogeneity.links.base import LINKS, Link
from raylfl.heterogeneity.values import FAILURE, PerClient, ValuePerClient
from raylfl.heterogeneity.world import RunContext


@LINKS.register("perfect")
@dataclass
class Perfect(Link):
    """Every upload is received."""

    def failure(self, r: int, clients: Ints, world: RunContext) -> Floats:
        return np.zeros(len(clients))


@LINKS.register("bernoulli", paper="FedACS")
@dataclass
class Bernoulli(Link):
    """Uploads of client i are lost with probability q_i, independently.

    q: the probability q_i in [0, 1) that an upload of client i is lost. dynamic: whether random q_i, such as
    `{uniform: [0, 0.4]}`, are redrawn every round instead of once per run.
    """

    q: ValuePerClient = 0.2  # FedACS, Fig. 4, left
    dynamic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._q = PerClient(self.q, "q", FAILURE, purpose="link/q", dynamic=self.dynamic)

    @property
    def varies(self) -> bool:
        return self._q.varies

    def failure(self, r: int, clients: Ints, world: RunContext) -> Floats:
        return self._q.at(r, clients, world)
