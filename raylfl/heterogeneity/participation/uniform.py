"""Uniform sampling of a fixed number of clients, as in McMahan 2017 and most analyses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raylfl.core.arrays import Floats
from raylfl.core.draws import Law
from raylfl.heterogeneity.participation.base import (
    PARTICIPATION,
    Draw,
    Sampler,
    equal_values,
    sample_with_replacement,
)
from raylfl.heterogeneity.world import RunContext


@PARTICIPATION.register("uniform", paper="McMahan 2017")
@dataclass
class Uniform(Sampler):
    """Uniform sampling of M = `size` clients, with or without replacement.

    replace: whether the M draws are i.i.d., with replacement. A client drawn s_i times then trains once. The federated
    method determines whether the client's update counts s_i times.
    """

    replace: bool = False

    memoryless: ClassVar[bool] = True

    def attempt(self, r: int, world: RunContext, attempt: int) -> Draw:
        available = self.eligible(r, world, attempt)
        if self.replace:
            p = equal_values(1 / world.count, world.count)
            return sample_with_replacement(p, self.cohort_size(world), r, world, available, attempt)
        return self._choose(world.count if available is None else np.flatnonzero(available), r, world, attempt)

    @property
    def law(self) -> Law | None:
        return "with_replacement" if self.replace else "without_replacement"

    def marginals(self, world: RunContext, r: int) -> Floats | None:
        """Expected draws M/N of all N clients [N], with and without replacement; None with an availability process."""
        if self._process is not None:
            return None
        return equal_values(self.cohort_size(world) / world.count, world.count)
