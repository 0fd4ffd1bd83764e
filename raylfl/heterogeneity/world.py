"""RunContext: the properties of a run on which a random draw may depend, besides round and client."""

from __future__ import annotations

from dataclasses import dataclass

from raylfl.core.population import Population


@dataclass(frozen=True)
class RunContext:
    """The properties of a run that heterogeneity processes use.

    seed: the run's seed; population: the N clients, their n_i and w_i; rounds: number of rounds of the whole run. As
    `phases` are fractions of `rounds`, a resumed run with more rounds has other borders of phases.
    """

    seed: int
    population: Population
    rounds: int

    @property
    def count(self) -> int:
        """The number of clients N."""
        return self.population.count
