"""The server's choice of clients: uniform, by weights, or in turns.

uniform: as in McMahan 2017 and most analyses.

weighted: the "passive arbitrary participation" of FOCUS (Ying, Li & Yang, NeurIPS 2025), Assumption 1, Case 3. Without
replacement, clients are drawn one after the other, each with probability proportional to its weight q_i among the
remaining clients (as numpy's `choice` does). This is the order of independent exponential variables with rates q_i
(Efraimidis & Spirakis 2006). The sampled clients are thus

    S_r = the M available clients with the smallest -log(u_i)/q_i,  u_i ~ U(0, 1) keyed by (seed, round, client)

permutation: one random order of the N clients, repeated for the whole run (random reshuffling over clients). Round r
samples the clients at positions r*M, ..., r*M + M - 1 (modulo N) of the order. Any N consecutive positions contain
every client once.

cyclic: Cho et al. 2023; Li & Lyu (SFL), NeurIPS 2023, App. B. The N clients form Kbar groups. An epoch of Kbar rounds
visits every group once, in random order. Each round samples n clients of one group without replacement. Kbar = N, n = 1
is one client after the other (sequential FL); Kbar = 1 is uniform sampling (parallel FL).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from raylfl.components.options import Ge, Kind
from raylfl.core.arrays import Floats, Ints
from raylfl.core.draws import Law
from raylfl.core.keyed import keyed, keyed_uniform
from raylfl.errors import BadValue
from raylfl.heterogeneity.participation.base import PARTICIPATION, Draw, Sampler, equal_values, sample_with_replacement
from raylfl.heterogeneity.values import ONCE, Interval
from raylfl.heterogeneity.world import RunContext

_WEIGHT = Interval("a weight, at least 0", 0.0)


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


@PARTICIPATION.register("weighted", paper="FOCUS, Case 3")
@dataclass
class Weighted(Sampler):
    """Sampling of M = `size` clients with unequal weights, with or without replacement.

    weights: a list of one weight per client; `random`: U(0, 1) + 0.01 each, drawn once per run (FOCUS, Fig. 4); or
    `data_size`: the client's number of samples. Weights need not sum to 1; a client of weight 0 is never sampled.
    replace: whether the M draws are i.i.d., with replacement.
    """

    weights: Annotated[Any, Kind("a list, `random` or `data_size`")] = "random"
    replace: bool = False

    memoryless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights in ("random", "data_size"):
            return
        if isinstance(self.weights, str) or not isinstance(self.weights, Sequence):
            raise BadValue("weights", got=self.weights, need="a list, random or data_size")
        for client, weight in enumerate(self.weights):
            if weight not in _WEIGHT:
                raise BadValue(f"weights[{client}]", got=weight, need=_WEIGHT.text)
        if not 0 < sum(self.weights) < math.inf:
            raise BadValue("weights", got=list(self.weights), need="above 0 for at least one client, with a finite sum")

    def check(self, world: RunContext) -> None:
        super().check(world)
        if not isinstance(self.weights, str) and len(self.weights) != world.count:
            got = f"{len(self.weights)} entries"
            raise BadValue("weights", got=got, need=f"{world.count}, one per client")

    def probabilities(self, world: RunContext) -> Floats:
        """The weights q_i of all N clients, normalised to sum 1, float64 [N]."""
        if self.weights == "random":
            q = keyed_uniform(world.seed, "participation/weights", ONCE, np.arange(world.count)) + 0.01
        elif self.weights == "data_size":
            q = world.population.sizes.astype(np.float64)
        else:
            q = np.array(self.weights, dtype=np.float64)
        p: Floats = q / q.sum()
        return p

    def attempt(self, r: int, world: RunContext, attempt: int) -> Draw:
        size, q = self.cohort_size(world), self.probabilities(world)
        available = self.eligible(r, world, attempt)
        if self.replace:
            return sample_with_replacement(q, size, r, world, available, attempt)
        ids = np.flatnonzero(q if available is None else q * available)
        u = keyed_uniform(world.seed, "participation", r, ids, lane=attempt)
        clocks = -np.log(u) / q[ids]
        if len(ids) > size:
            ids = ids[np.argpartition(clocks, size - 1)[:size]]
        return Draw.once(ids)

    @property
    def law(self) -> Law | None:
        return "with_replacement" if self.replace else "at_most_once"

    def marginals(self, world: RunContext, r: int) -> Floats | None:
        """Expected draws M q_i of all N clients [N]; None without replacement or with an availability process.

        M is `cohort_size`, and q_i the entry of `probabilities`.
        """
        if self._process is not None or not self.replace:
            return None
        return self.cohort_size(world) * self.probabilities(world)


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
