"""The state of a run between rounds, and the result of one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from raylfl.core.algorithm import ServerState, State
from raylfl.core.costs import Costs, Links
from raylfl.core.population import Round
from raylfl.experiment.parts import UNSEEN
from raylfl.runtime.workers.backend import Handle
from raylfl.runtime.workers.task import ClientReports

Metrics = dict[str, Any]  # a row of metrics.jsonl


@dataclass(frozen=True)
class Average:
    """The weighted mean [d] of the server's iterates x_0, ..., x_r, with weight rho^-(k+1) of x_k (SFL, Theorem 1).

    x: the mean, in float64. mass: the sum of the weights divided by the weight of x_r, sum_k rho^(r-k).
    """

    x: Tensor
    mass: float
    rho: float

    @staticmethod
    def of(x: Tensor, rho: float) -> Average:
        """The mean of one iterate x_0 = x [d]."""
        return Average(x.double(), 1.0, rho)

    def with_(self, x: Tensor) -> Average:
        """The mean after one more iterate x_{r+1} = x [d]."""
        mass = self.rho * self.mass + 1.0
        return Average(self.x + (x.double() - self.x) / mass, mass, self.rho)


@dataclass
class FederationState:
    """The state of a run between two rounds, which the next round needs and a checkpoint stores."""

    round: int  # number of finished rounds
    server: ServerState  # the algorithm's server state
    buffers: Tensor  # the server's values of the module's buffers [b]
    clients: dict[int, Handle] = field(default_factory=dict)  # client -> handle of its state, if it has one
    changed: set[int] = field(default_factory=set)  # clients whose state is newer than the last checkpoint
    costs: Costs = field(default_factory=Costs)  # totals of all rounds
    seconds: float = 0.0  # simulated (virtual) duration of all rounds
    computation_seconds: float = 0.0  # the same without communication
    last_finite_loss: float = float("nan")  # newest finite mean training loss of a round; nan: none
    # the state of the local optimizer [m], empty unless it is averaged over clients
    moments: Tensor = field(default_factory=lambda: torch.empty(0))
    average: Average | None = None  # mean of the iterates; None: not measured
    links: Links = field(default_factory=Links)  # floats along each link


@dataclass
class RoundResult:
    """The result of the local work of a round, as the server receives it.

    An upload is dropped if its client failed or returned non-finite values.
    """

    round: Round  # the planned round, in which dropped uploads do not count as received
    reports: ClientReports  # of all clients that trained
    uploads: State  # name -> rows of the received clients in cohort order; in a ring, one row from the last of them
    client_states: list[Handle]  # handles of the received clients' new states
    up_floats: int  # floats of one client's upload; on a graph, those that a node sends along one edge
    events: list[str] = field(default_factory=list)  # one line for each dropped upload
    metrics: dict[str, float] = field(default_factory=dict)  # of the round's step, from the states of nodes
    sums: State | None = None  # name -> weighted sum of uploads that workers added up; None: all uploads are rows

    @property
    def visible_uploads(self) -> State:
        """The uploads that the algorithm receives: without buffers and optimizer states."""
        return {name: rows for name, rows in self.uploads.items() if name not in UNSEEN}
