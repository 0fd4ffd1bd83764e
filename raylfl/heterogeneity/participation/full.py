"""Full participation: every client takes part in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raylfl.core.arrays import Bools, Floats
from raylfl.core.draws import Law
from raylfl.heterogeneity.participation.base import PARTICIPATION, Availability
from raylfl.heterogeneity.world import RunContext


@PARTICIPATION.register("full")
@dataclass
class Full(Availability):
    """Full participation: every client takes part in every round."""

    law: ClassVar[Law | None] = "independent"
    memoryless: ClassVar[bool] = True

    def available(self, r: int, world: RunContext, attempt: int = 0) -> Bools:
        return np.ones(world.count, dtype=bool)

    def marginals(self, world: RunContext, r: int) -> Floats:
        return np.ones(world.count)
