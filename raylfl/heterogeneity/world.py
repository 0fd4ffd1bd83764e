"""World: what a draw may depend on besides the round and the client."""

from __future__ import annotations

from dataclasses import dataclass

from raylfl.core.population import Population


@dataclass(frozen=True)
class RunContext:
    """One run as the heterogeneity processes see it.

    seed: the run's; population: the N clients, their n_i and w_i; rounds: how many the run has in all
    (`phases` are fractions of it), so raising it on resume moves the borders of phases.
    """

    seed: int
    population: Population
    rounds: int

    @property
    def count(self) -> int:
        """N."""
        return self.population.count
