"""Whose upload arrives: the contract of links. Links fail independently, per client and round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from raylfl.core.keyed import keyed_uniform
from raylfl.core.population import Bools, Floats, Ints
from raylfl.heterogeneity.world import RunContext
from raylfl.registry import Registry

LINKS: Registry[Link] = Registry("links", "raylfl.heterogeneity.links", lambda: Link)


@dataclass
class Link(ABC):
    """The way from a client to the server (in a ring: to the next client)."""

    @abstractmethod
    def failure(self, r: int, clients: Ints, world: RunContext) -> Floats:
        """q, the probability that the upload is lost, float64 [C], for clients (ids [C]) in round r."""

    @abstractmethod
    def check(self, world: RunContext) -> None:
        """Raises BadValue for what only N can tell."""

    def lost(self, r: int, clients: Ints, world: RunContext) -> Bools:
        """Whose upload is lost, bool [C]: Bernoulli(q), keyed by (seed, round, client) each."""
        return keyed_uniform(world.seed, "link", r, clients) < self.failure(r, clients, world)
