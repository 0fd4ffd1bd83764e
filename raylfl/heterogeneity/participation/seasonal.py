"""Periodic availability: the non-stationary Bernoulli processes of FedAWE.

Xiang et al., NeurIPS 2024, experiments: client i is available with probability p_i f(r), independently, where

    sinusoid    f(r) = A sin(2 pi r/P) + 1 - A          between 1 - 2A and 1
    staircase   f(r) = 1 in the first half of every P rounds, 1 - A in the second

A is the amplitude and P the period in rounds. The paper computes p_i from the client's labels; here it is any value per
client.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from raylfl.components.options import Doc, Ge, Le
from raylfl.core.arrays import Floats
from raylfl.heterogeneity.forms import PROBABILITY
from raylfl.heterogeneity.participation.base import PARTICIPATION, Independent
from raylfl.heterogeneity.values import PerClient, ValuePerClient
from raylfl.heterogeneity.world import RunContext


@dataclass
class Seasonal(Independent):
    """Independent availability of client i in round r with probability p_i f(r), f periodic.

    p: the probabilities p_i at the peak of the season, one value per client.
    """

    p: ValuePerClient = 0.5
    period: Annotated[int, Ge(2), Doc("the period P in rounds")] = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        self._p = PerClient.parse(self.p, "p", PROBABILITY, purpose="participation/p")

    @abstractmethod
    def season(self, r: int) -> float:
        """The factor f(r) of all availability probabilities in round r, in [0, 1]."""

    def check(self, world: RunContext) -> None:
        self._p.check(world.count)

    def probabilities(self, r: int, world: RunContext) -> Floats:
        return self._p.at(r, np.arange(world.count), world) * self.season(r)


@PARTICIPATION.register("sinusoid", paper="FedAWE")
@dataclass
class Sinusoid(Seasonal):
    """Independent availability in round r with probability p_i (A sin(2 pi r/P) + 1 - A), amplitude A and period P."""

    amplitude: Annotated[float, Ge(0), Le(0.5), Doc("the amplitude A, with 1 - 2A >= 0")] = 0.3

    def season(self, r: int) -> float:
        return self.amplitude * math.sin(2 * math.pi * r / self.period) + 1 - self.amplitude


@PARTICIPATION.register("staircase", paper="FedAWE")
@dataclass
class Staircase(Seasonal):
    """Independent availability with probability p_i in the first half of every period and p_i (1 - A) in the second.

    A: the amplitude.
    """

    amplitude: Annotated[float, Ge(0), Le(1), Doc("the amplitude A; the lower step is 1 - A")] = 0.6

    def season(self, r: int) -> float:
        return 1.0 if 2 * (r % self.period) < self.period else 1.0 - self.amplitude
