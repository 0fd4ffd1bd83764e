"""Counters of the actual communication and computation of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from raylfl.core.arrays import Floats, Ints


def floats_in(state: Mapping[str, Tensor]) -> int:
    """The number of floats in a broadcast or in one client's upload."""
    return sum(t.numel() for t in state.values())


@dataclass
class Costs:
    """Cumulative counters of traffic and work; lost uploads count, because they were sent.

    uplink_floats: floats sent from clients to the server. downlink_floats: from the server to clients. peer_floats:
    from clients to clients. local_steps: the sum of all numbers of local steps K_i. gradients: the number of sample
    gradients. busiest_node_floats: the sum over the rounds of the largest number of floats in and out of one node in
    that round; the server is a node too. busiest_link_floats: likewise for one link, both directions together.
    """

    uplink_floats: int = 0
    downlink_floats: int = 0
    peer_floats: int = 0
    local_steps: int = 0
    gradients: int = 0
    busiest_node_floats: int = 0
    busiest_link_floats: int = 0

    def add(self, other: Costs) -> Costs:
        return Costs(**{k: v + getattr(other, k) for k, v in vars(self).items()})

    def metrics(self) -> dict[str, int]:
        """The counters as metrics, `cost/<name>` -> value."""
        return {f"cost/{k}": v for k, v in vars(self).items()}


class RoundCosts(NamedTuple):
    """The costs of a round, its M messages and its simulated duration.

    ends: the client ids (from, to) of each message [M, 2], -1 for the server. floats: the number of floats of each
    message [M]. seconds: the duration of the round. computation_seconds: the duration without communication.
    """

    costs: Costs
    ends: Ints
    floats: Floats
    seconds: float
    computation_seconds: float
