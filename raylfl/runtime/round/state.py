"""What a run carries from round to round, and what came of one round."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from raylfl.core.algorithm import ServerState, State
from raylfl.core.costs import Costs
from raylfl.core.population import Round
from raylfl.runtime.workers.backend import Handle
from raylfl.runtime.workers.task import ClientReports


@dataclass
class FederationState:
    """All that the next round needs; what a checkpoint holds.

    server: the algorithm's; buffers [b]: the module's (averaged); clients: handles of the states of the clients that
    have taken part; changed: clients whose state is newer than the last checkpoint; seconds: the virtual clock.
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


@dataclass
class RoundResult:
    """What the server received in a round.

    round: as drawn, with the uploads that really were received; reports: of every client that worked; uploads: rows
    of the received clients (of a ring the last one's), in cohort order; client_states: their new states; up_floats:
    of one client's upload; events: a line for each upload that was dropped.
    """

    round: Round
    reports: ClientReports
    uploads: State
    client_states: list[Handle]
    up_floats: int
    events: list[str] = field(default_factory=list)
