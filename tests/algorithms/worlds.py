"""Random problems and rounds for property tests: small, with any kind of participation."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raylfl.core.algorithm import Algorithm
from raylfl.core.population import Population, Round
from raylfl.testing import recorded_round, simulate

D = 5


@dataclass(frozen=True)
class RunContext:
    """Clients with f_i = sum_k a_ik (x_k - b_ik)^2 / 2, noisy gradients, and rounds to replay."""

    population: Population
    rounds: list[Round]
    noise: float
    seed: int

    def gradient(self, i: int, x: Tensor, r: int, t: int) -> Tensor:
        rng = np.random.default_rng([self.seed, i])
        a, b = rng.uniform(0.5, 2.0, D), rng.standard_normal(D)
        noise = 0.0 if t < 0 else self.noise * np.random.default_rng([self.seed, i, r, t]).standard_normal(D)
        return torch.from_numpy(a * (x.numpy() - b) + noise)

    def models(self, algorithm: Algorithm) -> list[Tensor]:
        """x after every round."""
        x0 = torch.linspace(-1, 2, D, dtype=torch.float64)
        return [s["x"] for s, _ in simulate(algorithm, self.gradient, self.rounds, x0, self.population)]


def world(
    seed: int,
    *,
    uniform: bool = False,
    full: bool = False,
    lossless: bool = False,
    draws: bool = True,
    size: int | None = None,
    steps: int | None = None,
    count: int = 6,
    noise: float = 0.1,
    clients: int | None = None,
) -> RunContext:
    """A random world; `full` is full participation over perfect links."""
    rng = np.random.default_rng(seed)
    n = clients or int(rng.integers(2, 7))
    population = Population.of(rng.integers(3, 30, n), "uniform" if uniform else "data_size")
    p = rng.dirichlet(np.ones(n))
    rounds = []
    for r in range(count):
        cohort = np.arange(n) if full else rng.permutation(n)[: size or int(rng.integers(1, n + 1))]
        rounds.append(
            recorded_round(
                r,
                cohort,
                population,
                steps=steps or rng.integers(1, 5, n),
                lr=0.05 * 0.9**r,
                draws=rng.integers(1, 4, len(cohort)) if draws and not full else 1,
                received=True if full or lossless else rng.random(len(cohort)) < 0.7,
                failure=0.0 if full or lossless else rng.uniform(0, 0.5, n),
                inclusion=p,
            )
        )
    return RunContext(population, rounds, noise, seed)


def constant_rate(of: RunContext) -> RunContext:
    """The same world with eta = 0.05 in every round."""
    rounds = [recorded_round(r.index, r.cohort, of.population, steps=r.steps, lr=0.05) for r in of.rounds]
    return RunContext(of.population, rounds, of.noise, of.seed)
