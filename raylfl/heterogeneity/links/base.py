"""The base class of link processes, which determine the uploads that the server receives.

A link fails independently for each client and round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from raylfl.components.options import Options
from raylfl.components.registry import Registry
from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.core.keyed import keyed_uniform
from raylfl.heterogeneity.world import RunContext

LINKS: Registry[Link] = Registry("links", "raylfl.heterogeneity.links", lambda: Link)


@dataclass
class Link(Options, ABC):
    """The links over which clients send their uploads, usually to the server.

    In a ring, a client's upload goes to the next client. In a method without a server, it goes to the client's
    neighbours in the graph.
    """

    @abstractmethod
    def failure(self, r: int, clients: Ints, world: RunContext) -> Floats:
        """The probability q_i that client i's upload of round r is lost, float64 [C], for C clients (ids [C])."""

    def check(self, world: RunContext) -> None:
        """Checks the options against the number of clients N; raises BadValue. Default: `failure` of round 0."""
        self.failure(0, np.arange(world.count), world)

    @property
    def varies(self) -> bool:
        """Whether `failure` can change from round to round; participation.jsonl then records it in every round.

        Default: the value of the option `dynamic`; False for a link process without this option.
        """
        return bool(getattr(self, "dynamic", False))

    def lost(self, r: int, clients: Ints, world: RunContext) -> Bools:
        """The mask of lost uploads of round r, bool [C], for C clients (ids [C]).

        The entries are Bernoulli(q_i) draws keyed by (seed, round, client); q_i as in `failure`.
        """
        failure = self.failure(r, clients, world)
        if not np.any(failure):
            return np.zeros(len(clients), dtype=bool)
        return keyed_uniform(world.seed, "link", r, clients) < failure
