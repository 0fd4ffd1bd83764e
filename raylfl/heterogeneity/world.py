"""RunContext: what a draw may depend on besides the round and the client."""

from __future__ import annotations

from dataclasses import dataclass

from raylfl.core.population import Population


@dataclass(frozen=True)
class RunContext:
    """A run as the heterogeneity processes see it.

    seed: of the run; population: the N clients, their n_i and w_i; rounds: of the whole run (`phases` are
    fractions of it, so raising it on resume moves the borders of phases).
    """

    seed: int
    population: Population
    rounds: int

    @property
    def count(self) -> int:
        """The number of clients N."""
        return self.population.count
