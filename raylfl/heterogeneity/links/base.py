"""The contract of links, which decide whose upload is received. Links fail independently, per client and round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from raylfl.core.keyed import keyed_uniform
from raylfl.core.population import Bools, Floats, Ints
from raylfl.heterogeneity.world import RunContext
from raylfl.options import Options
from raylfl.registry import Registry

LINKS: Registry[Link] = Registry("links", "raylfl.heterogeneity.links", lambda: Link)


@dataclass
class Link(Options, ABC):
    """The link from a client to the server (in a ring: to the next client)."""

    @abstractmethod
    def failure(self, r: int, clients: Ints, world: RunContext) -> Floats:
        """Probabilities q_i that the upload is lost, float64 [C], for clients (ids [C]) in round r."""

    @abstractmethod
    def check(self, world: RunContext) -> None:
        """Raise BadValue for what only N can tell."""

    def lost(self, r: int, clients: Ints, world: RunContext) -> Bools:
        """Lost uploads, bool [C]: Bernoulli(q_i), each keyed by (seed, round, client)."""
        return keyed_uniform(world.seed, "link", r, clients) < self.failure(r, clients, world)
