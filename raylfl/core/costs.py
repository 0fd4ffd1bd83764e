"""Counters of the actual communication and computation of a run: in all, and along each link in each direction."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raylfl.core.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from torch import Tensor

SERVER = -1  # the number of the server as an end of a link
HEAD = "from,to,messages,floats\n"


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
        return Costs(*map(operator.add, vars(self).values(), vars(other).values()))

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


@dataclass(frozen=True)
class Links:
    """The numbers of messages and floats along L directed links, [L] each; links without messages are left out.

    codes: the ends (from, to) of each link as one integer, ascending [L]; `ends` decodes them.
    """

    codes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    messages: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    floats: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def ends(self) -> Ints:
        """The ends (from, to) of each link [L, 2]: client ids, or -1 for the server."""
        return np.column_stack([self.codes >> 32, self.codes & 0xFFFFFFFF]) - 1

    def add(self, ends: Ints, floats: Floats) -> Links:
        """The totals with M further messages, given by their ends (from, to) [M, 2] and floats [M].

        >>> two = Links().add(np.array([[-1, 0], [0, -1], [-1, 0]]), np.array([5.0, 3.0, 5.0]))
        >>> two.ends.tolist(), two.messages.tolist(), two.floats.tolist()
        ([[-1, 0], [0, -1]], [2, 1], [10.0, 3.0])
        """
        codes = (ends[:, 0] + 1 << 32) + ends[:, 1] + 1
        distinct, inverse, count = np.unique(codes, return_inverse=True, return_counts=True)
        places: Ints = np.asarray(self.codes.searchsorted(distinct))
        new: Bools = np.append(self.codes, -1)[places] != distinct
        every, messages, carried = self.codes, self.messages.copy(), self.floats.copy()
        if new.any():  # inserted: sorting all links again would take most of a round after many rounds
            every = np.insert(every, places[new], distinct[new])
            messages, carried = np.insert(messages, places[new], 0), np.insert(carried, places[new], 0.0)
            places = places + np.cumsum(new) - new
        messages[places] += count
        carried[places] += np.bincount(inverse.ravel(), floats, len(distinct))
        return Links(every, messages, carried)

    def busiest(self) -> tuple[int, int, float] | None:
        """(end, other end, floats) of the link with the most floats in both directions together; None without links."""
        if not len(self.codes):
            return None
        pairs, positions = np.unique(np.sort(self.ends, axis=1), axis=0, return_inverse=True)
        carried = np.bincount(positions.ravel(), self.floats)
        k = int(carried.argmax())
        return int(pairs[k, 0]), int(pairs[k, 1]), float(carried[k])

    def csv(self) -> str:
        """The content of edges.csv: a header, and one line per directed link."""
        rows = zip(self.ends.tolist(), self.messages.tolist(), self.floats.tolist(), strict=True)
        # in a run begun by an older version, a number of floats may be a mean over clients
        lines = (
            f"{end_name(a)},{end_name(b)},{messages},{int(floats) if floats.is_integer() else floats}\n"
            for (a, b), messages, floats in rows
        )
        return HEAD + "".join(lines)

    @staticmethod
    def of_columns(columns: Mapping[str, NDArray[np.generic]]) -> Links:
        """The totals from the arrays of these names in a checkpoint. Raises ValueError for invalid arrays."""
        links = Links(**{name: np.asarray(values) for name, values in columns.items()})
        lengths = {len(values) for values in vars(links).values()}
        kinds = [values.dtype for values in vars(links).values()]
        if len(lengths) != 1 or kinds != [np.int64, np.int64, np.float64] or (np.diff(links.codes) <= 0).any():
            raise ValueError("its record of the floats on links is damaged")
        return links


def end_name(client: int) -> str:
    """An end of a link as text: the client's id, or `server`."""
    return "server" if client == SERVER else str(client)
