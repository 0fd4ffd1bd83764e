"""Parsed value specifications (grammar: `values.py`), which compute the value of each client.

A specification gives one value to each client of a part. A part is all N clients at the top level, or the members of
one entry of `groups` or `ranges`. The place of a client is its number 0, 1, ... within the part; at the top level it is
the client's id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from raylfl.core.arrays import Floats, Ints
from raylfl.core.keyed import keyed, keyed_uniform
from raylfl.errors import BadValue
from raylfl.heterogeneity.world import RunContext

ONCE = -1  # the round key of values that are drawn once per run


@dataclass(frozen=True)
class Query:
    """A request for the values of C clients of a part: their ids `clients` [C] and their places in it [C], 0..size-1.

    size: the number of clients of the part. purpose: a name for the option, part of the key of its random draws. r: the
    round.
    """

    world: RunContext
    purpose: str
    r: int
    key: int  # r if values are redrawn every round, else ONCE
    clients: Ints
    place: Ints
    size: int
    top: Floats | None = None  # [C], the upper ends of `uniform: [lo, null]`

    def uniform(self) -> Floats:
        """One draw of U(0, 1) for each of the C clients [C], a function of (seed, purpose, key, client)."""
        return keyed_uniform(self.world.seed, self.purpose, self.key, self.clients)


class ValueSpec(ABC):
    """A parsed specification of one value per client; each subclass is one form of the grammar."""

    @property
    def varies(self) -> bool:
        """Whether the form itself gives values that change from round to round, as `phases` does.

        Redraws of random values by the option `dynamic` do not count.
        """
        return False

    @abstractmethod
    def at(self, query: Query) -> Floats:
        """The values of the C clients in the query, float64 [C]."""

    def fit(self, size: int) -> None:  # noqa: B027 (most specifications fit any size)
        """Checks that the lists and counts in the specification fit `size` clients; raises BadValue."""


@dataclass(frozen=True)
class Constant(ValueSpec):
    """The same value for every client: `0.2` or `{value: 0.2}`."""

    value: float

    def at(self, query: Query) -> Floats:
        return np.full(len(query.clients), self.value)


@dataclass(frozen=True)
class PerClientList(ValueSpec):
    """A list of one value per client: `[0.1, 0.2]` or `{list: [0.1, 0.2]}`."""

    key: str
    values: tuple[float, ...]

    def fit(self, size: int) -> None:
        if len(self.values) != size:
            raise BadValue(self.key, got=f"{len(self.values)} entries", need=f"{size}, one per client")

    def at(self, query: Query) -> Floats:
        return np.array(self.values, dtype=np.float64)[query.place]


@dataclass(frozen=True)
class Linspace(ValueSpec):
    """Values evenly spaced from lo (first place of a part) to hi (last place): `{linspace: [lo, hi]}`."""

    low: float
    high: float

    def at(self, query: Query) -> Floats:
        return self.low + (self.high - self.low) * query.place / max(query.size - 1, 1)


@dataclass(frozen=True)
class Uniform(ValueSpec):
    """Uniform draws from lo to hi: `{uniform: [lo, hi]}`.

    integer: whether only whole numbers are drawn, both ends included.
    """

    low: float
    high: float | None  # None: the client's entry of `Query.top`, or low if that is smaller
    integer: bool

    def at(self, query: Query) -> Floats:
        if self.high is None:
            assert query.top is not None, "this option allows no open upper end"
            high = np.maximum(query.top, self.low)
        else:
            high = np.full(len(query.clients), float(self.high))
        u = query.uniform()
        if not self.integer:
            return self.low + (high - self.low) * u
        return np.minimum(self.low + np.floor(u * (high - self.low + 1)), high)


@dataclass(frozen=True)
class Lognormal(ValueSpec):
    """Lognormal draws exp(mean + sigma z), z ~ N(0, 1): `{lognormal: [mean, sigma]}`."""

    mean: float  # of the logarithm, as in numpy: the median is exp(mean)
    sigma: float

    def at(self, query: Query) -> Floats:
        from scipy.special import ndtri  # a slow import, needed here only

        values: Floats = np.exp(self.mean + self.sigma * ndtri(query.uniform()))
        return values


@dataclass(frozen=True)
class Parts(ValueSpec):
    """A partition of the clients into parts, each with its specification: `groups` and `ranges`.

    shares: the sizes of the parts, as numbers of clients if `counted`, else as fractions with sum 1. shuffled: whether
    members are random (`ranges`) or consecutive (`groups`). forms: one specification for each part.
    """

    key: str
    shares: tuple[float, ...]
    counted: bool
    shuffled: bool
    forms: tuple[ValueSpec, ...]

    @property
    def varies(self) -> bool:
        return any(form.varies for form in self.forms)

    def edges(self, size: int) -> Ints:
        """The borders 0 = e_0 <= ... <= e_P of the P parts, int64 [P + 1]: part j has the places e_j..e_{j+1} - 1.

        e_P = size if shares are fractions, and the sum of the counts otherwise.
        """
        borders = np.cumsum((0.0, *self.shares)) * (1 if self.counted else size)
        return np.floor(borders + 0.5).astype(np.int64)

    def fit(self, size: int) -> None:
        edges = self.edges(size)
        if edges[-1] != size:
            raise BadValue(self.key, got=f"counts that sum to {edges[-1]}", need=f"{size}, all clients")
        for form, members in zip(self.forms, np.diff(edges), strict=True):
            form.fit(int(members))

    def at(self, query: Query) -> Floats:
        place = query.place
        if self.shuffled:
            place = _shuffle(query.world.seed, f"{query.purpose}/{self.key}", query.size)[place]
        edges, values = self.edges(query.size), np.empty(len(place))
        for form, low, high in zip(self.forms, edges[:-1], edges[1:], strict=True):
            mask = (place >= low) & (place < high)
            if mask.any():
                top = None if query.top is None else query.top[mask]
                part = replace(
                    query, clients=query.clients[mask], place=place[mask] - low, size=int(high - low), top=top
                )
                values[mask] = form.at(part)
        return values


@lru_cache(maxsize=8)
def _shuffle(seed: int, purpose: str, size: int) -> Ints:
    """A random permutation of 0..size-1, a function of the arguments; cached, therefore read-only."""
    order = keyed(seed, purpose, ONCE).permutation(size)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class Phases(ValueSpec):
    """One specification for each phase of the run: `phases`. Random values are redrawn every round."""

    until: tuple[float, ...]  # the ends of all phases but the last, as fractions of the run's rounds
    forms: tuple[ValueSpec, ...]
    varies: ClassVar[bool] = True

    def fit(self, size: int) -> None:
        for form in self.forms:
            form.fit(size)

    def at(self, query: Query) -> Floats:
        borders = np.floor(np.array(self.until) * query.world.rounds + 0.5)
        now = int(np.searchsorted(borders, query.r, side="right"))
        return self.forms[now].at(replace(query, key=query.r))
