"""Everyone, every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raylfl.core.population import Bools, Floats
from raylfl.heterogeneity.participation.base import PARTICIPATION, Availability
from raylfl.heterogeneity.world import World


@PARTICIPATION.register("full")
@dataclass
class Full(Availability):
    """Everyone takes part in every round."""

    def check(self, world: World) -> None:
        """Nothing can be wrong."""

    def available(self, r: int, world: World, attempt: int = 0) -> Bools:
        return np.ones(world.count, dtype=bool)

    def marginals(self, world: World, r: int) -> Floats:
        return np.ones(world.count)
