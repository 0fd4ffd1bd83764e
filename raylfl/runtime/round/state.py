"""The state of a run between rounds, and the result of one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from raylfl.core.algorithm import ServerState, State
from raylfl.core.costs import Costs
from raylfl.core.links import Links
from raylfl.core.population import Round
from raylfl.runtime.workers.backend import Handle
from raylfl.runtime.workers.task import ClientReports


@dataclass(frozen=True)
class Average:
    """The weighted mean [d] of x_0, ..., x_r with weight rho^-(k+1) of x_k (SFL [2], Theorem 1).

    x: the mean. mass: the sum of the weights divided by the weight of x_r, sum_k rho^(r-k).
    """

    x: Tensor
    mass: float
    rho: float

    @staticmethod
    def of(x: Tensor, rho: float) -> Average:
        """The mean of x_0 alone."""
        return Average(x.double(), 1.0, rho)

    def with_(self, x: Tensor) -> Average:
        """The mean with one more iterate."""
        mass = self.rho * self.mass + 1.0
        return Average(self.x + (x.double() - self.x) / mass, mass, self.rho)


@dataclass
class FederationState:
    """The state that the next round needs and a checkpoint holds.

    server: the algorithm's server state; buffers: the module's averaged buffers [b]; moments: the averaged state of the
    local optimizer [m], empty unless it is averaged; clients: handles of the states of clients that have taken part;
    changed: clients whose state is newer than the last checkpoint; seconds: the virtual clock; average: the mean of
    iterates, if the run measures it; links: floats along each link, None if they were not counted from the first round
    on.
    """

    round: int
    server: ServerState
    buffers: Tensor
    clients: dict[int, Handle] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    costs: Costs = field(default_factory=Costs)
    seconds: float = 0.0
    computation_seconds: float = 0.0
    last_finite_loss: float = float("nan")
    moments: Tensor = field(default_factory=lambda: torch.empty(0))
    average: Average | None = None
    links: Links | None = field(default_factory=Links)


@dataclass
class RoundResult:
    """The result of a round at the server.

    round: the round as drawn, with the uploads that were really received; reports: reports of all clients that trained;
    uploads: rows of the received clients in cohort order (in a ring, of the last); client_states: their new states;
    up_floats: floats of one client's upload; events: one line for each dropped upload; worked: handles of the nodes'
    rows (`raylfl.runtime.round.homes`); metrics: computed from these rows; sums: weighted sums of uploads that do not
    arrive as rows, None if all are rows.
    """

    round: Round
    reports: ClientReports
    uploads: State
    client_states: list[Handle]
    up_floats: int
    events: list[str] = field(default_factory=list)
    worked: Any = None
    metrics: dict[str, float] = field(default_factory=dict)
    sums: State | None = None
