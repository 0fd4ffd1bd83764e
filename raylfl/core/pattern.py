"""Exchange patterns: the order in which a cohort works, the messages it exchanges, and the duration of a round.

    Star    server -> clients -> server, all clients in parallel       FedAvg and most methods
    Ring    server -> client -> ... -> client -> server, in sequence   sequential federated learning (SFL)
    Relay   server -> client -> server -> client -> ..., in sequence   centralised sequential split learning (SSL)
    Alone   one client owns all data; nothing is sent                  centralised training
    Peers   nodes exchange parameters along the edges of a graph       decentralised methods, without a server

An algorithm names its pattern in `Algorithm.pattern`, and the round calls the pattern's methods. A new pattern is a
subclass that overrides the order, messages or duration. The graph of `Peers` is another object: the config group
`topology`.
"""

from abc import ABC, abstractmethod

import numpy as np

from raylfl.core.arrays import Floats, Ints


class ExchangePattern(ABC):
    """The interface of a pattern: how models are exchanged in a round. Objects have no state."""

    sequential: bool = False
    """Whether the clients of a cohort work one after the other, each from the result of the previous client."""
    peers: bool = False
    """Whether clients are nodes of the configured graph and exchange their parameters with neighbours, not a server."""
    merged: bool = False
    """Whether one client trains on the data of all clients."""

    def order(self, count: int, rng: np.random.Generator) -> Ints:
        """The order in which the C = `count` clients of a cohort work, a permutation [C]; default: as sampled."""
        return np.arange(count)

    def hops(self, count: int) -> Ints:
        """The M messages with the model, for C = `count` clients, as rows (from, to, client) [M, 3].

        from, to: positions in the cohort, -1 for the server. client: the position of the client whose time includes
        the message.
        """
        clients = np.arange(count)
        return np.concatenate([from_server(clients), to_server(clients)])

    @abstractmethod
    def round_seconds(self, client_seconds: Floats) -> float:
        """The virtual seconds of a round, from the virtual seconds of each of its clients [C], C >= 1."""


def from_server(clients: Ints) -> Ints:
    """One message from the server to each of these positions in the cohort, in the form of `ExchangePattern.hops`."""
    return np.column_stack([np.full_like(clients, -1), clients, clients])


def to_server(clients: Ints) -> Ints:
    """One message to the server from each of these positions in the cohort, in the form of `ExchangePattern.hops`."""
    return from_server(clients)[:, [1, 0, 2]]


class Star(ExchangePattern):
    """Every client starts from the server's broadcast and sends its upload back; clients work in parallel."""

    def round_seconds(self, client_seconds: Floats) -> float:
        return float(client_seconds.max())


class Ring(ExchangePattern):
    """The model passes from client to client, in a new random order each round; the last sends it to the server."""

    sequential = True

    def order(self, count: int, rng: np.random.Generator) -> Ints:
        return rng.permutation(count)

    def hops(self, count: int) -> Ints:
        messages = np.arange(count + 1 if count else 0)  # one into each client, and one from the last to the server
        into = np.where(messages < count, messages, -1)
        return np.column_stack([messages - 1, into, np.minimum(messages, count - 1)])

    def round_seconds(self, client_seconds: Floats) -> float:
        return float(client_seconds.sum())


class Relay(Ring):
    """A ring through the server: every client receives the model from the server and sends it back to the server."""

    def hops(self, count: int) -> Ints:
        return ExchangePattern.hops(self, count)


class Alone(Star):
    """One client that owns the data of all clients and sends nothing, as in centralised training."""

    sequential = merged = True

    def hops(self, count: int) -> Ints:
        return np.zeros((0, 3), dtype=np.int64)


class Peers(Star):
    """Every node starts from its own parameters and sends them to its neighbours; nodes work in parallel.

    The messages of a round are those of its graph, `Round.edges`.
    """

    peers = True
