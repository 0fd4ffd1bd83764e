"""Sampling in one random order of the clients, repeated for the whole run (random reshuffling over clients).

With N clients and M clients per round, round r samples the clients at positions r*M, ..., r*M + M - 1 (modulo N) of the
order. Any N consecutive positions contain every client once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raylfl.core.keyed import keyed
from raylfl.heterogeneity.forms import ONCE
from raylfl.heterogeneity.participation.base import PARTICIPATION, Draw, Sampler
from raylfl.heterogeneity.world import RunContext


@PARTICIPATION.register("permutation", paper="SGD-RR over clients")
@dataclass
class Permutation(Sampler):
    """Each round samples the next M = `size` clients of one random order.

    A client that is not available at its turn is skipped until its next turn.
    """

    def attempt(self, r: int, world: RunContext, attempt: int) -> Draw:
        size, available = self.cohort_size(world), self.eligible(r, world, attempt)
        order = keyed(world.seed, "participation/order", ONCE).permutation(world.count)
        ids = order[(r * size + np.arange(size)) % world.count]
        return Draw.once(ids if available is None else ids[available[ids]])
