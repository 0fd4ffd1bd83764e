"""Clients or groups of clients that take turns.

permutation: one random order of the N clients, repeated for the whole run (random reshuffling over clients). Round r
samples the clients at positions r*M, ..., r*M + M - 1 (modulo N) of the order. Any N consecutive positions contain
every client once.

cyclic: Cho et al. 2023; Li & Lyu (SFL), NeurIPS 2023, App. B. The N clients form Kbar groups. An epoch of Kbar rounds
visits every group once, in random order. Each round samples n clients of one group without replacement. Kbar = N, n = 1
is one client after the other (sequential FL); Kbar = 1 is uniform sampling (parallel FL).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from raylfl.components.options import Ge
from raylfl.core.arrays import Ints
from raylfl.core.keyed import keyed
from raylfl.errors import BadValue
from raylfl.heterogeneity.participation.base import PARTICIPATION, Draw, Sampler
from raylfl.heterogeneity.values import ONCE
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


@PARTICIPATION.register("cyclic", paper="SFL, App. B (Cho 2023)")
@dataclass
class Cyclic(Sampler):
    """Groups of clients take turns; n clients of the current group are sampled.

    groups: the number Kbar of groups; each has consecutive clients, and the sizes of groups differ by at most one.
    reshuffle: whether the groups have a new random order in every epoch, instead of one order for all epochs. size: the
    number n of sampled clients, at most the size of the smallest group.
    """

    groups: Annotated[int, Ge(1)] = 1
    reshuffle: bool = True

    def check(self, world: RunContext) -> None:
        super().check(world)
        if self.groups > world.count:
            raise BadValue("groups", got=self.groups, need=f"1..{world.count}, the number of clients")
        smallest, size = world.count // self.groups, self.cohort_size(world)
        if size > smallest:
            key = "fraction" if self.size is None else "size"
            need = f"at most {smallest} clients, the smallest of {self.groups} groups of {world.count}"
            raise BadValue(key, got=size if key == "size" else f"{self.fraction} ({size} clients)", need=need)

    def group(self, r: int, world: RunContext) -> Ints:
        """The client ids of the group from which round r samples."""
        epoch, turn = divmod(r, self.groups)
        key = epoch if self.reshuffle else ONCE
        order = keyed(world.seed, "participation/groups", key).permutation(self.groups)
        size, larger = divmod(world.count, self.groups)  # the first groups have one client more
        first, last = (int(k) * size + min(int(k), larger) for k in (order[turn], order[turn] + 1))
        return np.arange(first, last)

    def attempt(self, r: int, world: RunContext, attempt: int) -> Draw:
        ids, available = self.group(r, world), self.eligible(r, world, attempt)
        if available is not None:
            ids = ids[available[ids]]
        return self._choose(ids, r, world, attempt)
