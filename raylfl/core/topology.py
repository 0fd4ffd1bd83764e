"""Topologies: in which order a cohort works, what travels between whom, and how long a round takes.

    Star    server -> clients -> server, all clients in parallel       FedAvg and most methods
    Ring    server -> client -> ... -> client -> server, in sequence   SFL (cyclic weight transfer)
    Alone   one client that owns all data beside the server            centralised training

An algorithm names its topology; the round asks the topology and not the algorithm's kind. A further one is a
subclass with its own order, exchange, traffic and time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from raylfl.core.deferred import Deferred
from raylfl.core.population import Floats, Ints


class Traffic(NamedTuple):
    """Floats sent in a round: client -> server, server -> client, client -> client."""

    uplink: int
    downlink: int
    peer: int = 0


class Network(Protocol):
    """The two ways in which a cohort's work can be carried out (`raylfl.runtime.workers.backend.Backend`)."""

    def run(self, tasks: Any, broadcast: Any, client_states: Any) -> Deferred[Any]:
        """Every task starts from the broadcast."""

    def run_ring(self, tasks: Any, broadcast: Any, client_states: Any, received: Sequence[bool]) -> Deferred[Any]:
        """Every task starts from the last result that was received before it."""


class Topology(ABC):
    """The exchange of one round. It has no state."""

    sequential: bool = False
    """The clients of a cohort work one after the other, each from the result of the one before."""

    def owners(self, clients: Sequence[Ints]) -> list[Ints]:
        """Merges or keeps the shards of the partition: the samples of each client that trains; default: unchanged."""
        return list(clients)

    def order(self, count: int, rng: np.random.Generator) -> Ints:
        """The order in which the `count` clients of a cohort take part, a permutation [C]; default: as drawn."""
        return np.arange(count)

    def exchange(
        self, network: Network, tasks: Any, broadcast: Any, client_states: Any, received: Sequence[bool]
    ) -> Deferred[Any]:
        """Hands the cohort's work out; the task results, whose uploads are what reaches the server."""
        return network.run(tasks, broadcast, client_states)

    @abstractmethod
    def traffic(self, sampled: int, up: int, down: int) -> Traffic:
        """Floats of a round with so many sampled clients. up: of one upload; down: of one broadcast."""

    @abstractmethod
    def round_seconds(self, client_seconds: Floats) -> float:
        """Virtual seconds of a round, from the seconds of each client, [C], C >= 1."""


class Star(Topology):
    """Every client starts from the server's broadcast and sends its upload back; clients work in parallel."""

    def traffic(self, sampled: int, up: int, down: int) -> Traffic:
        return Traffic(sampled * up, sampled * down)

    def round_seconds(self, client_seconds: Floats) -> float:
        return float(client_seconds.max())


class Ring(Topology):
    """The model passes through the cohort in a fresh random order; the last client sends it to the server."""

    sequential = True

    def order(self, count: int, rng: np.random.Generator) -> Ints:
        return rng.permutation(count)

    def exchange(
        self, network: Network, tasks: Any, broadcast: Any, client_states: Any, received: Sequence[bool]
    ) -> Deferred[Any]:
        return network.run_ring(tasks, broadcast, client_states, received)

    def traffic(self, sampled: int, up: int, down: int) -> Traffic:
        entering = min(sampled, 1) * down  # what the first gets is what the last sends: a model
        return Traffic(entering, entering, max(sampled - 1, 0) * down)

    def round_seconds(self, client_seconds: Floats) -> float:
        return float(client_seconds.sum())


class Alone(Star):
    """One client that owns the data of all, in the server's place: nothing travels."""

    sequential = True

    def owners(self, clients: Sequence[Ints]) -> list[Ints]:
        return [np.concatenate(list(clients))]

    def traffic(self, sampled: int, up: int, down: int) -> Traffic:
        return Traffic(0, 0)
