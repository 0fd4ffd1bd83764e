"""Parsed value specifications (grammar: `values.py`), which compute the value of each client.

A specification is evaluated for the clients of a part. At the top level the part is all clients, and the place of
client i is i; inside `groups` and `ranges` places count within the part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from raylfl.core.keyed import keyed, keyed_uniform
from raylfl.core.population import Bools, Floats, Ints
from raylfl.errors import BadValue
from raylfl.heterogeneity.world import RunContext

ONCE = -1  # the round key of values that are drawn once per run


@dataclass(frozen=True)
class Query:
    """The clients whose values are requested: ids `clients` [C], and places [C] in 0..size-1 of the enclosing part.

    purpose: the key of the option's random draws. r: the round.
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
        """Draws of U(0, 1) [C], each a function of (seed, purpose, key, client)."""
        return keyed_uniform(self.world.seed, self.purpose, self.key, self.clients)

    def part(self, mask: Bools, place: Ints, size: int) -> Query:
        """A query for the masked clients only, as members of a part of `size` clients.

        mask: [C]. place: the place in that part of every client of this query, [C].
        """
        top = None if self.top is None else self.top[mask]
        return replace(self, clients=self.clients[mask], place=place[mask], size=size, top=top)


class ValueSpec(ABC):
    """A parsed value specification."""

    @abstractmethod
    def at(self, query: Query) -> Floats:
        """The values [C] of the clients in the query."""

    def fit(self, size: int) -> None:  # noqa: B027 (most specifications fit any size)
        """Checks that the specification fits a part of `size` clients; raises BadValue."""


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
    """Values evenly spaced from lo to hi over the places of a part: `{linspace: [lo, hi]}`."""

    low: float
    high: float

    def at(self, query: Query) -> Floats:
        return self.low + (self.high - self.low) * query.place / max(query.size - 1, 1)


@dataclass(frozen=True)
class Uniform(ValueSpec):
    """Uniform draws: `{uniform: [lo, hi]}`; integer: whole numbers, both ends included."""

    low: float
    high: float | None  # None: the client's own upper end, or low if that is smaller
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
    """Lognormal draws: `{lognormal: [mean, sigma]}`."""

    mean: float  # of the logarithm, as in numpy and scipy: the median is exp(mean)
    sigma: float

    def at(self, query: Query) -> Floats:
        from scipy.special import ndtri  # a slow import, needed here only

        values: Floats = np.exp(self.mean + self.sigma * ndtri(query.uniform()))
        return values


@dataclass(frozen=True)
class Parts(ValueSpec):
    """A specification for each part of the clients: `groups` (consecutive members) and `ranges` (random members)."""

    key: str
    shares: tuple[float, ...]  # all fractions, or all counts
    counted: bool
    shuffled: bool
    forms: tuple[ValueSpec, ...]

    def edges(self, size: int) -> Ints:
        """The borders 0 = e_0 <= ... <= e_P = size: part j has places e_j..e_{j+1}-1."""
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
                values[mask] = form.at(query.part(mask, place - low, int(high - low)))
        return values


@lru_cache(maxsize=8)
def _shuffle(seed: int, purpose: str, size: int) -> Ints:
    """A random permutation of 0..size-1, a function of the arguments (cached)."""
    order = keyed(seed, purpose, ONCE).permutation(size)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class Phases(ValueSpec):
    """A specification for each phase of the run, redrawn every round: `phases`."""

    until: tuple[float, ...]  # fractions of the rounds at which all but the last phase end
    forms: tuple[ValueSpec, ...]

    def fit(self, size: int) -> None:
        for form in self.forms:
            form.fit(size)

    def at(self, query: Query) -> Floats:
        borders = np.floor(np.array(self.until) * query.world.rounds + 0.5)
        now = int(np.searchsorted(borders, query.r, side="right"))
        return self.forms[now].at(replace(query, key=query.r))
