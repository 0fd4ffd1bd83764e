"""The forms of `values.py` after parsing: what each gives to which client.

A form sees the clients it is asked about as members of a part: at the top the part is everyone and the
place of client i is i; inside `groups` and `ranges` places count within the part.
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

ONCE = -1  # the round key of what is drawn once a run


@dataclass(frozen=True)
class Asked:
    """Which clients' values are wanted: ids [C], their places 0..size-1 within the enclosing part."""

    world: RunContext
    purpose: str
    r: int
    key: int  # r where values are redrawn every round, else ONCE
    clients: Ints
    place: Ints
    size: int
    top: Floats | None = None  # [C], the upper end of `uniform: [lo, null]`

    def uniform(self) -> Floats:
        """U(0, 1) [C], each a function of (seed, purpose, key, client)."""
        return keyed_uniform(self.world.seed, self.purpose, self.key, self.clients)

    def part(self, mask: Bools, place: Ints, size: int) -> Asked:
        """The masked clients, as members of a part of `size` clients."""
        top = None if self.top is None else self.top[mask]
        return replace(self, clients=self.clients[mask], place=place[mask], size=size, top=top)


class Form(ABC):
    """One parsed form."""

    @abstractmethod
    def at(self, asked: Asked) -> Floats:
        """The values [C] of the clients asked for."""

    def fit(self, size: int) -> None:  # noqa: B027 (most forms fit any size)
        """Raises BadValue if the form cannot hold for a part of this many clients."""


@dataclass(frozen=True)
class Same(Form):
    """`0.2` or `{value: 0.2}`."""

    value: float

    def at(self, asked: Asked) -> Floats:
        return np.full(len(asked.clients), self.value)


@dataclass(frozen=True)
class Listed(Form):
    """`[0.1, 0.2]` or `{list: [0.1, 0.2]}`."""

    key: str
    values: tuple[float, ...]

    def fit(self, size: int) -> None:
        if len(self.values) != size:
            raise BadValue(self.key, got=f"{len(self.values)} entries", need=f"{size}, one per client")

    def at(self, asked: Asked) -> Floats:
        return np.array(self.values, dtype=np.float64)[asked.place]


@dataclass(frozen=True)
class Linspace(Form):
    """`{linspace: [lo, hi]}`."""

    low: float
    high: float

    def at(self, asked: Asked) -> Floats:
        return self.low + (self.high - self.low) * asked.place / max(asked.size - 1, 1)


@dataclass(frozen=True)
class Uniform(Form):
    """`{uniform: [lo, hi]}`; integer: both ends included."""

    low: float
    high: float | None  # None: up to the client's own top, or low where that is smaller
    integer: bool

    def at(self, asked: Asked) -> Floats:
        if self.high is None:
            assert asked.top is not None, "the option offers no open end"
            high = np.maximum(asked.top, self.low)
        else:
            high = np.full(len(asked.clients), float(self.high))
        u = asked.uniform()
        if not self.integer:
            return self.low + (high - self.low) * u
        return np.minimum(self.low + np.floor(u * (high - self.low + 1)), high)


@dataclass(frozen=True)
class Lognormal(Form):
    """`{lognormal: [mean, sigma]}`."""

    mean: float  # of the logarithm, as in numpy and scipy: the median is exp(mean)
    sigma: float

    def at(self, asked: Asked) -> Floats:
        from scipy.special import ndtri  # 0.2 s in every process of a run, for those that need it

        return np.exp(self.mean + self.sigma * ndtri(asked.uniform()))


@dataclass(frozen=True)
class Parts(Form):
    """`groups` (consecutive members) and `ranges` (random members)."""

    key: str
    shares: tuple[float, ...]  # all fractions, or all counts
    counted: bool
    shuffled: bool
    forms: tuple[Form, ...]

    def edges(self, size: int) -> Ints:
        """0 = e_0 <= ... <= e_P = size: part j has places e_j..e_{j+1}-1."""
        borders = np.cumsum((0.0, *self.shares)) * (1 if self.counted else size)
        return np.floor(borders + 0.5).astype(np.int64)

    def fit(self, size: int) -> None:
        edges = self.edges(size)
        if edges[-1] != size:
            raise BadValue(self.key, got=f"counts that sum to {edges[-1]}", need=f"{size}, all clients")
        for form, members in zip(self.forms, np.diff(edges), strict=True):
            form.fit(int(members))

    def at(self, asked: Asked) -> Floats:
        place = asked.place
        if self.shuffled:
            place = _shuffle(asked.world.seed, f"{asked.purpose}/{self.key}", asked.size)[place]
        edges, values = self.edges(asked.size), np.empty(len(place))
        for form, low, high in zip(self.forms, edges[:-1], edges[1:], strict=True):
            mask = (place >= low) & (place < high)
            if mask.any():
                values[mask] = form.at(asked.part(mask, place - low, int(high - low)))
        return values


@lru_cache(maxsize=8)
def _shuffle(seed: int, purpose: str, size: int) -> Ints:
    """A random bijection of 0..size-1, a function of its arguments: remembered, not stored."""
    order = keyed(seed, purpose, ONCE).permutation(size)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class Phases(Form):
    """`phases`: one form after another, redrawn every round."""

    until: tuple[float, ...]  # fractions of the rounds at which all but the last phase end
    forms: tuple[Form, ...]

    def fit(self, size: int) -> None:
        for form in self.forms:
            form.fit(size)

    def at(self, asked: Asked) -> Floats:
        borders = np.floor(np.array(self.until) * asked.world.rounds + 0.5)
        now = int(np.searchsorted(borders, asked.r, side="right"))
        return self.forms[now].at(replace(asked, key=asked.r))
