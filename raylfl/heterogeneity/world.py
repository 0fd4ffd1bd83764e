"""RunContext: the properties of a run on which its random draws depend, besides round and client."""

from dataclasses import dataclass

from raylfl.core.population import Population


@dataclass(frozen=True)
class RunContext:
    """The properties of a run that participation, links, local work and topologies use.

    seed: the run's seed. population: the clients with their numbers of samples and weights. rounds: the number of
    rounds of the whole run; values with `phases` change at fractions of this number. A run with such values therefore
    cannot be resumed with more rounds.
    """

    seed: int
    population: Population
    rounds: int

    @property
    def count(self) -> int:
        """The number of clients N."""
        return self.population.count
