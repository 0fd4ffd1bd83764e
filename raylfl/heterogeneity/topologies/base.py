"""The base class of topologies: the graph between the clients, for methods without a server.

A graph has one node for each client. In each round the participation process determines the nodes that work, and the
link process determines the messages that arrive: a message sent by node i is lost with probability q_i, independently
on every edge.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from raylfl.components.options import Doc, Kind, Options
from raylfl.components.registry import Registry
from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.core.keyed import keyed_uniform
from raylfl.core.mixing import Edges, Weights, edge_counts
from raylfl.errors import BadValue
from raylfl.heterogeneity.links.base import Link
from raylfl.heterogeneity.values import POSITIVE, Interval, PerClient, ValuePerClient
from raylfl.heterogeneity.world import RunContext

if TYPE_CHECKING:
    import networkx as nx

KEY = "links"
Links = Mapping[tuple[int, int], tuple[float, float]]  # edge, smaller client first -> (latency, bandwidth)
TOPOLOGIES: Registry[Graph] = Registry("topologies", "raylfl.heterogeneity.topologies", lambda: Graph)
_PER_EDGE = "a number, {uniform: [lo, hi]} or {lognormal: [mean, sigma]}"
ValuePerEdge = Annotated[Any, Kind(_PER_EDGE)]
_SECONDS, _RATE = Interval("a number, at least 0", 0.0, phases=False), replace(POSITIVE, phases=False)
RECENT = 3  # rounds whose edges are cached, for a graph that changes


def read_links(path: str) -> Links:
    """The edges in the file `path`. Raises BadValue for an unreadable file, a bad number, or a repeated edge.

    A line is an edge, such as `0 1 0.05 2000`: two clients in either order, the latency in seconds, and the bandwidth
    in floats per second (`inf`: infinite). Text after a # is a comment.
    """
    links: dict[tuple[int, int], tuple[float, float]] = {}
    with reading(KEY, path, "a text file with lines of two client numbers, seconds and floats a second"):
        rows = [(int(a), int(b), float(seconds), float(rate)) for a, b, seconds, rate in words(path)]
    for a, b, seconds, rate in rows:
        edge = min(a, b), max(a, b)
        for bad, need in (
            (edge[0] < 0, "client numbers from 0"),
            (not 0 <= seconds < math.inf, "seconds of at least 0"),
            (not rate > 0, "floats a second above 0"),
            (edge in links, "one line for an edge"),
        ):
            if bad:
                raise _refused(path, edge, need)
        links[edge] = seconds, rate
    return links


def _refused(path: str, edge: tuple[int, int], need: str) -> BadValue:
    return BadValue(KEY, got=f"{path} with edge {edge[0]} {edge[1]}", need=need)


@contextmanager
def reading(key: str, path: str, need: str) -> Iterator[None]:
    """A context manager that turns the errors of reading and parsing a file into BadValue for the option `key`.

    path, need: the file that is read and its expected content, for the message.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadValue(key, got=path, need=f"{need}: {error}") from None


def words(path: str) -> list[list[str]]:
    """The words of each line of a text file, without comments (text after a #) and empty lines."""
    lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    return [found for line in lines if (found := line.partition("#")[0].split())]


@dataclass(kw_only=True)
class Graph(Options, ABC):
    """A graph on the N clients, constant or changing every round; its edges are a function of (seed, round)."""

    weights: Annotated[
        Weights,
        Doc(
            "the weights of exchanged rows; auto: what the method needs, `metropolis`, `column_stochastic` or `pair` "
            "(R row-stochastic, C column-stochastic)"
        ),
    ] = "auto"
    latency: Annotated[
        ValuePerClient,
        Doc(
            "virtual seconds of each message of a client, also to and from a server; between clients, the larger value"
        ),
    ] = 0.0
    bandwidth: Annotated[
        ValuePerClient | None, Doc("floats per second on a client's link; between clients, the smaller; null: infinite")
    ] = None
    edge_latency: Annotated[
        ValuePerEdge | None,
        Doc("virtual seconds of a message on each edge between clients; null: from `latency` of its ends"),
    ] = None
    edge_bandwidth: Annotated[
        ValuePerEdge | None, Doc("floats per second on each edge between clients; null: from `bandwidth` of its ends")
    ] = None
    links: Annotated[
        str | None, Doc("a file with the latency and bandwidth of single edges, for methods without a server")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._latency, self._bandwidth = self._parsed("latency", _SECONDS), self._parsed("bandwidth", _RATE)
        for key in ("edge_latency", "edge_bandwidth"):
            spec = getattr(self, key)
            forms = set(spec) <= {"value", "uniform", "lognormal"} if isinstance(spec, Mapping) else False
            if spec is not None and not (forms or isinstance(spec, (int, float))):
                hint = "topology.links names a file with values of single edges"
                raise BadValue(key, got=spec, need=_PER_EDGE, hint=hint)
        self._edge_latency = self._parsed("edge_latency", _SECONDS)
        self._edge_bandwidth = self._parsed("edge_bandwidth", _RATE)
        self._links = {} if self.links is None else read_links(self.links)
        self._pairs: dict[tuple[int, int, int], Ints] = {}  # cached edges by (seed, number of clients, round)
        self._edges: Edges | None = None

    def _parsed(self, key: str, interval: Interval) -> PerClient | None:
        spec = getattr(self, key)
        return None if spec is None else PerClient(spec, key, interval, purpose=f"topology/{key}")

    @property
    def directed(self) -> bool:
        """Whether an edge may carry messages in one direction only."""
        return False

    @property
    def instant(self) -> bool:
        """Whether no message takes any time."""
        times = self.latency, self.bandwidth, self.edge_latency, self.edge_bandwidth, self.links
        return times == (0, None, None, None, None)

    @property
    def changes(self) -> bool:
        """Whether the graph changes from round to round."""
        return False

    @abstractmethod
    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        """The graph of round r on one node 0, 1, ... for each client; an nx.DiGraph if `directed`."""

    def check(self, world: RunContext) -> None:
        """Checks that the options fit the number of clients; raises BadValue."""
        self.check_links(world)
        self.pairs(0, world)

    def check_links(self, world: RunContext) -> None:
        """Checks that values per client fit the number of clients, and that the edges in the file `links` exist.

        Raises BadValue otherwise. In a graph that changes, only the client numbers of these edges are checked.
        """
        for values in filter(None, (self._latency, self._bandwidth)):
            values.at(0, np.arange(world.count), world)
        if self.links is not None:
            known = None if self.changes else set(map(tuple, np.sort(self.pairs(0, world), axis=1).tolist()))
            for edge in self._links:
                if edge[1] >= world.count:
                    raise _refused(self.links, edge, f"edges between clients 0..{world.count - 1}")
                if known is not None and edge not in known:
                    raise _refused(self.links, edge, "edges of the graph")

    def pairs(self, r: int, world: RunContext) -> Ints:
        """The E directed edges (from, to) of round r, int64 [E, 2], in ascending order.

        An undirected edge gives two rows; self-loops are left out. The array is cached: do not change it.
        """
        key = (world.seed, world.count, r if self.changes else 0)
        if key not in self._pairs:
            found = np.array(sorted(self.graph(r, world).to_directed().edges), dtype=np.int64).reshape(-1, 2)
            if len(self._pairs) > RECENT:
                self._pairs.clear()
            self._pairs[key] = found[found[:, 0] != found[:, 1]]
        return self._pairs[key]

    def edges(self, r: int, world: RunContext, link: Link) -> Edges:
        """The edges of round r, with a mask of the edges along which a message arrives.

        Returns the object of the last call if edges and mask are the same as then.
        """
        pairs = self.pairs(r, world)
        arrives = ~self.lost(r, pairs, world, link)
        last = self._edges
        if last is None or last.pairs is not pairs or (last.arrives != arrives).any():
            self._edges = last = Edges(world.count, pairs, arrives, self.directed, self.weights)
        return last

    def lost(self, r: int, pairs: Ints, world: RunContext, link: Link) -> Bools:
        """The mask of lost messages in round r, bool [E], one for each of the E directed edges `pairs` [E, 2].

        A message is lost with its sender's failure probability in `link`. The draws are keyed by (seed, round, from,
        to).
        """
        if not len(pairs):
            return np.zeros(0, dtype=bool)
        q = link.failure(r, np.arange(world.count), world)[pairs[:, 0]]
        return keyed_uniform(world.seed, "edge", r, pairs @ np.array([world.count, 1])) < q

    def seconds(self, ends: Ints, floats: Floats, world: RunContext) -> Floats:
        """The virtual seconds that each of M messages takes, [M]: latency + floats / bandwidth of its link.

        ends: sender and receiver of each message, [M, 2], as client ids; -1 is a server. floats: the number of floats
        in each message [M].
        """
        between = (ends >= 0).all(axis=1)
        edges = np.sort(ends, axis=1)
        numbers = edges[between] @ np.array([world.count, 1])  # a value of an edge is a function of its number
        latency: Floats = np.zeros(len(ends))
        rate: Floats = np.full(len(ends), np.inf)
        if self._latency is not None:
            latency = _at_ends(self._latency, ends, 0.0, world).max(axis=1)
        if self._bandwidth is not None:
            rate = _at_ends(self._bandwidth, ends, np.inf, world).min(axis=1)
        if self._edge_latency is not None:
            latency[between] = self._edge_latency.at(0, numbers, world)
        if self._edge_bandwidth is not None:
            rate[between] = self._edge_bandwidth.at(0, numbers, world)
        if self._links:
            for k, (a, b) in enumerate(edges.tolist()):
                latency[k], rate[k] = self._links.get((a, b), (latency[k], rate[k]))
        return latency + floats / rate

    def balanced(self, world: RunContext) -> bool:
        """Whether in round 0 each node has as many edges into it as out of it."""
        sent, received = edge_counts(self.pairs(0, world), world.count)
        return bool((sent == received).all())


def _at_ends(values: PerClient, ends: Ints, server: float, world: RunContext) -> Floats:
    """The value of both ends of each message [M, 2]; server: the value of the server, end -1."""
    out, clients = np.full(ends.shape, server), ends >= 0
    out[clients] = values.at(0, ends[clients], world)
    return out


@TOPOLOGIES.register("auto")
@dataclass(kw_only=True)
class Auto(Graph):
    """The graph of the method: a server's star or SFL's chain; for methods without a server, the undirected ring."""

    def check(self, world: RunContext) -> None:
        self.check_links(world)  # a ring has any number of nodes; it is built only for methods without a server

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        import networkx as nx

        return nx.cycle_graph(world.count)
