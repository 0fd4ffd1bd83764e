"""The contract of links, which determine the received uploads.

Links fail independently for each client and round.
"""

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
        """Failure probabilities q_i that an upload is lost, float64 [C], of these clients (ids [C]) in round r."""

    @abstractmethod
    def check(self, world: RunContext) -> None:
        """Checks the options against the number of clients N; raises BadValue."""

    def lost(self, r: int, clients: Ints, world: RunContext) -> Bools:
        """The mask of lost uploads, bool [C]: Bernoulli(q_i) draws, keyed by (seed, round, client)."""
        return keyed_uniform(world.seed, "link", r, clients) < self.failure(r, clients, world)
