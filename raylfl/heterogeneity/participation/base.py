"""Base classes of participation processes, which sample the clients of each round.

There are two kinds, besides the replay of a record (`trace`). An `Availability` process (bernoulli, markov, ...)
determines the available clients; used alone, all available clients take part. A `Sampler` (uniform, weighted, ...) is
the server's choice among the available clients; its option `availability` names an availability process.

The draw of round r is a function of (seed, r): rounds may be drawn in any order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from raylfl.components.options import Ge, Gt, Le, Options
from raylfl.components.registry import NAMING, Entry, Registry
from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.core.draws import Law
from raylfl.core.keyed import keyed, keyed_uniform
from raylfl.errors import BadValue, placed
from raylfl.heterogeneity.world import RunContext

PARTICIPATION: Registry[Participation] = Registry(
    "participation", "raylfl.heterogeneity.participation", lambda: Participation
)
ATTEMPTS = 100  # largest number of draws under `on_empty: resample`; then the round stays empty


@dataclass(frozen=True)
class Draw:
    """The C sampled clients of a round.

    cohort: distinct client ids, int64 [C], ascending unless replayed from a record. draws: how often each was drawn,
    s_i >= 1, int64 [C].
    """

    cohort: Ints
    draws: Ints

    @staticmethod
    def once(ids: Ints) -> Draw:
        """A draw in which each of these distinct client ids is drawn once; the cohort is in ascending order."""
        cohort = np.array(ids, dtype=np.int64)
        cohort.sort()
        return Draw(cohort, np.ones(len(ids), dtype=np.int64))


@lru_cache(maxsize=8)
def equal_values(value: float, count: int) -> Floats:
    """One value for each of N = `count` clients [N]; cached, therefore read-only."""
    values = np.full(count, value)
    values.flags.writeable = False
    return values


def sample_with_replacement(
    p: Floats, size: int, r: int, world: RunContext, available: Bools | None = None, attempt: int = 0
) -> Draw:
    """A draw of M = size clients of N, i.i.d. with probabilities p [N] normalised over the available clients.

    p >= 0 need not sum to 1. available: bool [N]; None: all. A client drawn s_i times appears once, with draws = s_i;
    clients with p_i = 0 never appear. The draw is empty if no available client has p_i > 0. attempt: 0 for the first
    draw of round r, k for its k-th redraw.
    """
    p = np.asarray(p, dtype=np.float64) if available is None else np.where(available, p, 0.0)
    assert p.shape == (world.count,), "one p per client"
    assert ((p >= 0) & (p < np.inf)).all(), "p must be finite and >= 0"
    total = np.cumsum(p)
    if total[-1] == 0:
        return Draw.once(np.empty(0, dtype=np.int64))
    u = keyed(world.seed, "participation", r, attempt).random(size)
    ids, draws = np.unique(np.searchsorted(total / total[-1], u, side="right"), return_counts=True)
    return Draw(ids.astype(np.int64), draws.astype(np.int64))


@dataclass(kw_only=True)
class Participation(Options, ABC):
    """A process that samples the clients of each round.

    on_empty: `skip` leaves a round without sampled clients empty; `resample` redraws it until a client is sampled, but
    leaves it empty after 100 draws.
    """

    on_empty: Literal["skip", "resample"] = "skip"

    memoryless: ClassVar[bool] = False
    """Whether the draws of different rounds are independent, if all clients are available. Theorems assume it."""

    def draw(self, r: int, world: RunContext) -> Draw:
        """The sampled clients of round r, a function of (seed, r); `on_empty` is applied.

        Raises BadValue unless `attempt` returns distinct clients of the N, each drawn at least once.
        """
        return self._until_nonempty(partial(self.attempt, r, world), world.count)

    def _checked(self, drawn: Draw, count: int) -> Draw:
        if not isinstance(drawn, Draw):
            given = type(drawn).__name__
        elif len(ids := drawn.cohort) and not 0 <= ids.min() <= ids.max() < count:
            given = f"clients {ids.min()}..{ids.max()}"
        elif not (ids[1:] > ids[:-1]).all() and len(np.unique(ids)) < len(ids):  # sorted, as usual: no need to sort
            given = "a client twice"
        elif drawn.draws.shape != ids.shape or not (drawn.draws > 0).all():
            given = f"draws {drawn.draws.tolist()} of {len(ids)} clients"
        else:
            return drawn
        need = f"a Draw: distinct clients of 0..{count - 1}, each drawn at least once"
        raise BadValue("participation", got=f"{type(self).__name__}.attempt returned {given}", need=need)

    def _until_nonempty(self, one: Callable[[int], Draw], count: int) -> Draw:
        drawn = self._checked(one(0), count)
        for attempt in range(1, ATTEMPTS if self.on_empty == "resample" else 1):
            if len(drawn.cohort):
                break
            drawn = self._checked(one(attempt), count)
        return drawn

    @abstractmethod
    def attempt(self, r: int, world: RunContext, attempt: int) -> Draw:
        """One draw of the sampled clients of round r, before `on_empty` is applied.

        attempt: 0 for the first draw of the round, k for the k-th redraw.
        """

    def check(self, world: RunContext) -> None:
        """Checks that list lengths and cohort sizes fit the number of clients N; raises BadValue. Default: no check."""

    def marginals(self, world: RunContext, r: int) -> Floats | None:
        """The expected number of times that each of the N clients is drawn in round r, float64 [N].

        Without replacement it is the inclusion probability. None, the default, if no closed form is known.
        """
        return None

    @property
    def law(self) -> Law | None:
        """The probability law of the draws of a round, see `raylfl.core.draws.Law`; None: unknown.

        For a sampler, this is the law if all clients are available. If the law is unknown, most aggregation rules have
        no known expected coefficients, and metrics that need these coefficients are left out.
        """
        return None

    def eligible(self, r: int, world: RunContext, attempt: int = 0) -> Bools | None:
        """The mask of available clients in round r, bool [N] for all N clients; None: all. attempt: as in `attempt`."""
        return None


class Availability(Participation):
    """A process that determines the available clients; used without a sampler, all available clients take part."""

    law: ClassVar[Law | None] = "at_most_once"

    @abstractmethod
    def available(self, r: int, world: RunContext, attempt: int = 0) -> Bools:
        """The mask of available clients in round r, bool [N] for all N clients; attempt: as in `attempt`."""

    def attempt(self, r: int, world: RunContext, attempt: int) -> Draw:
        return Draw.once(self.available(r, world, attempt).nonzero()[0])

    def check(self, world: RunContext) -> None:
        self.available(0, world)

    def eligible(self, r: int, world: RunContext, attempt: int = 0) -> Bools | None:
        return self.available(r, world, attempt)


class Independent(Availability):
    """Availability of client i in round r with probability p_i(r), independently of other clients and rounds."""

    law: ClassVar[Law | None] = "independent"  # but for the redraws under `on_empty: resample`
    memoryless: ClassVar[bool] = True

    @abstractmethod
    def probabilities(self, r: int, world: RunContext) -> Floats:
        """Availability probabilities p_i(r) of all N clients in round r, float64 [N]."""

    def available(self, r: int, world: RunContext, attempt: int = 0) -> Bools:
        u = keyed_uniform(world.seed, "availability", r, np.arange(world.count), lane=attempt)
        return u < self.probabilities(r, world)

    def marginals(self, world: RunContext, r: int) -> Floats:
        """Inclusion probabilities in round r [N]: p_i, or p_i (1 - e^T)/(1 - e) with `on_empty: resample`.

        p_i is the availability probability of client i in the round, e = prod_j (1 - p_j) the probability of an empty
        draw, and T = ATTEMPTS the largest number of draws.
        """
        p = self.probabilities(r, world)
        empty = float(np.prod(1 - p))
        if self.on_empty == "skip" or empty == 1:
            return p
        return p * (1 - empty**ATTEMPTS) / (1 - empty)


@dataclass
class Sampler(Participation):
    """Sampling by the server: M of the available clients, or all of them if fewer are available.

    size: the cohort size M, at most the number of clients N unless draws are with replacement.
    fraction: instead of size, M = fraction*N, rounded, at least 1.
    availability: name and options of an availability process, such as {name: bernoulli, p: 0.3}; null: all clients
    are available.
    """

    size: Annotated[int, Ge(1)] | None = None
    fraction: Annotated[float, Gt(0), Le(1)] | None = None
    availability: dict[str, Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.size is None) == (self.fraction is None):
            given = f"{self.size} beside fraction={self.fraction}"
            raise BadValue("size", got=given, need="one of the two: either size or fraction")
        self._process = None if self.availability is None else _availability(self.availability)

    def cohort_size(self, world: RunContext) -> int:
        """The number M of sampled clients, from the options `size` or `fraction`.

        If clients are drawn with replacement, or by the algorithm instead of this process, M is the number of draws.
        Raises BadValue if `size` is above the number of clients and sampling is without replacement.
        """
        if self.size is None:
            assert self.fraction is not None
            return max(1, math.floor(self.fraction * world.count + 0.5))
        replace = getattr(self, "replace", None)  # None: this process has no such option
        if self.size > world.count and not replace:
            hint = "" if replace is None else "replace: true has no such bound"
            raise BadValue("size", got=self.size, need=f"1..{world.count}, the number of clients", hint=hint)
        return self.size

    def draw_from(self, p: Floats, r: int, world: RunContext) -> Draw:
        """A draw of M available clients with replacement, for algorithms that sample the clients of a round themselves.

        M: `cohort_size`. p: the algorithm's sampling probabilities of all N clients [N]. `on_empty` is applied.
        """
        size = self.cohort_size(world)

        def one(attempt: int) -> Draw:
            return sample_with_replacement(p, size, r, world, self.eligible(r, world, attempt), attempt)

        return self._until_nonempty(one, world.count)

    def check(self, world: RunContext) -> None:
        self.cohort_size(world)
        if self._process is not None:
            with placed("availability"):
                self._process.check(world)

    def eligible(self, r: int, world: RunContext, attempt: int = 0) -> Bools | None:
        return None if self._process is None else self._process.available(r, world, attempt)

    def _choose(self, ids: Ints | int, r: int, world: RunContext, attempt: int) -> Draw:
        """A uniform draw of M of these client ids, or of all if there are fewer; a number N stands for 0..N-1."""
        rng, count = keyed(world.seed, "participation", r, attempt), ids if isinstance(ids, int) else len(ids)
        return Draw.once(rng.choice(ids, size=min(self.cohort_size(world), count), replace=False))


def _is_availability(entry: Entry[Participation]) -> bool:
    try:
        return issubclass(entry.cls, Availability)
    except BadValue:  # a plug-in that cannot be used
        return False


def _availability(options: dict[str, Any]) -> Availability:
    cls, keys = PARTICIPATION.choose(options, "availability")
    known = [option.name for option in fields(cls) if option.name != "on_empty"]
    if not issubclass(cls, Availability):
        names = ", ".join(entry.name for entry in PARTICIPATION if _is_availability(entry))
        raise BadValue("availability.name", got=keys["name"], need=f"an availability process: {names}")
    given = {key: value for key, value in options.items() if key not in NAMING}
    for key in given:
        if key not in known:
            hint = "set participation.on_empty" if key == "on_empty" else ""
            need = f"one of {', '.join(known)}" if known else f"left out: {keys['name']} has no options"
            raise BadValue(f"availability.{key}", got=given[key], need=need, hint=hint)
    with placed("availability"):
        return cls(**given)
