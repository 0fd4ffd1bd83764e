"""Independent Bernoulli participation: the "active arbitrary participation" of FOCUS.

Ying, Li & Yang, NeurIPS 2025, Assumption 1, Case 2: client i takes part with probability p_i, independently of other
clients and rounds. The p_i need not sum to 1, and the cohort size varies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raylfl.core.arrays import Floats
from raylfl.heterogeneity.forms import PROBABILITY
from raylfl.heterogeneity.participation.base import PARTICIPATION, Independent
from raylfl.heterogeneity.values import PerClient, ValuePerClient
from raylfl.heterogeneity.world import RunContext

PAPER = {"ranges": [{"fraction": 0.9, "uniform": [0.1, 0.3]}, {"fraction": 0.1, "uniform": [0.1, 0.9]}]}


@PARTICIPATION.register("bernoulli", paper="FOCUS, Case 2")
@dataclass
class Bernoulli(Independent):
    """Each client takes part with its own probability p_i, independently.

    p: the probabilities p_i, one value per client. Random values are drawn once per run, and every round inside
    `phases`. With null they are drawn as in FOCUS's experiments, from U(0.1, 0.3) for 90 % of the clients and from
    U(0.1, 0.9) for 10 %.
    """

    p: ValuePerClient = None  # the default is not PAPER itself, because a config's own mapping would be merged into it

    def __post_init__(self) -> None:
        super().__post_init__()
        self._p = PerClient.parse(PAPER if self.p is None else self.p, "p", PROBABILITY, purpose="participation/p")

    def check(self, world: RunContext) -> None:
        self._p.check(world.count)

    def probabilities(self, r: int, world: RunContext) -> Floats:
        return self._p.at(r, np.arange(world.count), world)
