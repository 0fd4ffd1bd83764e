"""Graphs from files: a list of edges, or the record of another run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, ClassVar

import networkx as nx
import numpy as np

from raylfl.components.options import Doc
from raylfl.core.arrays import Bools, Ints
from raylfl.errors import BadValue
from raylfl.heterogeneity.links.base import Link
from raylfl.heterogeneity.topologies.base import TOPOLOGIES, Graph, reading, words
from raylfl.heterogeneity.world import RunContext


@TOPOLOGIES.register("file")
@dataclass(kw_only=True)
class File(Graph):
    """The edges in a text file, two client numbers per line, such as `0 1`; text after a # is a comment."""

    path: Annotated[str, Doc("a text file with an edge on each line")]
    one_way: Annotated[bool, Doc("true: a line `0 1` is an edge from 0 to 1 only")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        with reading("path", self.path, "a text file with two client numbers a line"):
            self._listed = [(int(a), int(b)) for a, b in words(self.path)]
        if any(min(edge) < 0 for edge in self._listed):
            raise BadValue("path", got=self.path, need="client numbers from 0")

    @property
    def directed(self) -> bool:
        return self.one_way

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        beyond = [edge for edge in self._listed if max(edge) >= world.count]
        if beyond:
            got = f"{self.path} with edge {beyond[0][0]} {beyond[0][1]}"
            raise BadValue("path", got=got, need=f"edges between clients 0..{world.count - 1}")
        found = nx.empty_graph(world.count, create_using=nx.DiGraph if self.one_way else nx.Graph)
        found.add_edges_from(self._listed)
        return found


@TOPOLOGIES.register("recorded")
@dataclass(kw_only=True)
class Recorded(Graph):
    """The graph of each round of another run, and the messages that arrived, from that run's topology.jsonl."""

    path: Annotated[str, Doc("a topology.jsonl; with its participation.jsonl as `participation: trace`")]
    changes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        with reading("path", self.path, "a readable topology.jsonl"):
            lines = Path(self.path).expanduser().read_text(encoding="utf-8").splitlines()
            self._rows = {int(row["round"]): _row(**row) for row in map(json.loads, lines)}

    @property
    def directed(self) -> bool:
        return any(row["directed"] for row in self._rows.values())

    def check(self, world: RunContext) -> None:
        self.check_links(world)
        missing = [r for r in range(world.rounds) if r not in self._rows]
        if missing:
            raise BadValue("path", got=f"{self.path} without round {missing[0]}", need="a record of every round")
        beyond = max((max(edge) for row in self._rows.values() for edge in row["edges"]), default=0)
        if beyond >= world.count:
            need = f"edges between clients 0..{world.count - 1}"
            raise BadValue("path", got=f"{self.path} with client {beyond}", need=need)

    def graph(self, r: int, world: RunContext) -> nx.Graph[int]:
        found = nx.empty_graph(world.count, create_using=nx.DiGraph)
        found.add_edges_from(self._rows[r]["edges"])
        return found

    def lost(self, r: int, pairs: Ints, world: RunContext, link: Link) -> Bools:
        """The mask of messages lost in the record, bool [E], for E edges `pairs` [E, 2]; `link` is not used."""
        arrived = set(compress(self._rows[r]["edges"], self._rows[r]["arrives"]))
        return np.array([tuple(pair) not in arrived for pair in pairs.tolist()], dtype=bool)


def _row(edges: list[list[int]], arrives: list[bool], directed: bool, **others: Any) -> dict[str, Any]:
    if len(edges) != len(arrives):
        raise ValueError(f"{len(edges)} edges, but {len(arrives)} entries of arrives")
    return {"edges": [(int(a), int(b)) for a, b in edges], "arrives": arrives, "directed": directed}
