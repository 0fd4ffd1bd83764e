"""Perfect links: every upload is received."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raylfl.core.arrays import Floats, Ints
from raylfl.heterogeneity.links.base import LINKS, Link
from raylfl.heterogeneity.world import RunContext


@LINKS.register("perfect")
@dataclass
class Perfect(Link):
    """Every upload is received."""

    @property
    def varies(self) -> bool:
        return False

    def failure(self, r: int, clients: Ints, world: RunContext) -> Floats:
        return np.zeros(len(clients))
