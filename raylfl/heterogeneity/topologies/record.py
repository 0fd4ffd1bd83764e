"""Rows of `topology.jsonl`: the graph of each round, the messages that arrived, and the matrices of the method.

    {"round": 0, "directed": false, "edges": [[0, 1], [1, 0], ...], "arrives": [true, false, ...],
     "nodes": [0, 1, 4], "W": {"own": [0.5, ...], "entries": [[1, 0, 0.33], ...]}}

`edges`: the directed edges (from, to) between all nodes, an undirected edge twice. `arrives`: whether a message along
each edge arrives. `nodes`: the nodes that worked in the round. The other keys are the mixing matrices of the method: W
(doubly stochastic), or C (column-stochastic), or both R (row-stochastic) and C. `own`: the diagonal of the matrix, in
the order of `nodes`. `entries`: its other entries [i, j, weight], where weight is that of node j's vector in the new
vector of node i; each (i, j) is listed once. `topology: {name: recorded, path: ...}` replays the file for any method
without a server.
"""

import json
from collections.abc import Sequence

import numpy as np

from raylfl.core.arrays import Ints
from raylfl.core.mixing import Edges, Family, Mixing
from raylfl.heterogeneity.trace import Row


def graph_line(round_: int, edges: Edges, nodes: Ints, family: Family, mixings: Sequence[Mixing]) -> str:
    """The line of round `round_` for topology.jsonl, with its newline; made once for the same edges and nodes.

    nodes: ids of the C nodes that worked [C]. family, mixings: the family of the method's mixing matrices, and these
    matrices, as in `raylfl.core.mixing`; row k and column k of each matrix belong to nodes[k].
    """
    names = ("R", "C") if family == "pair" else ("C",) if family == "column" else ("W",)

    def text() -> str:
        row = {"directed": edges.directed, "edges": edges.pairs.tolist(), "arrives": edges.arrives.tolist()}
        matrices = {name: _matrix(mixing, nodes) for name, mixing in zip(names, mixings, strict=True)}
        return json.dumps({**row, "nodes": nodes.tolist(), **matrices})[1:]

    return f'{{"round": {round_}, {edges.once("line", nodes, family, text)}\n'


def _matrix(mixing: Mixing, nodes: Ints) -> Row:
    ends = np.column_stack([mixing.targets, mixing.sources])  # an exchange along two opposite edges has a pair twice
    pairs, at = np.unique(ends, axis=0, return_inverse=True)
    weights = np.bincount(at.ravel(), mixing.weights, len(pairs))
    entries = zip(*nodes[pairs].T.tolist(), weights.tolist(), strict=True) if len(pairs) else ()
    return {"own": mixing.self_weights.tolist(), "entries": list(entries)}
