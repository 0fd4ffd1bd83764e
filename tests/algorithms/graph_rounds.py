"""Random graphs and rounds for methods without a server, and their states in a simulation of such rounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import Algorithm, ServerState
from raylfl.core.mixing import Edges
from raylfl.testing import recorded_round, simulate
from tests import oracles
from tests.algorithms.replay import gradient_of, population_of
from tests.oracles.graphs import GraphRound

N, D, ROUNDS = 7, 4, 12
NAMES = [entry.name for entry in ALGORITHMS if issubclass(entry.cls, GraphAlgorithm)]


def random_graph(rng: np.random.Generator, directed: bool) -> set[tuple[int, int]]:
    """The pairs of a random graph with a ring in it; an undirected edge twice."""
    pairs = {(i, (i + 1) % N) for i in range(N)} | {(i, j) for i in range(N) for j in range(N) if rng.random() < 0.5}
    pairs = {(i, j) for i, j in pairs if i != j}
    return pairs if directed else pairs | {(j, i) for i, j in pairs}


def random_rounds(seed: int, directed: bool = False, steps: int = 3, equal: bool = False) -> list[GraphRound]:
    """Rounds with another graph, random nodes, lost messages, and one round in which no node works."""
    rng, out = np.random.default_rng(seed), []
    for r in range(ROUNDS):
        pairs = random_graph(rng, directed)
        nodes = sorted(rng.choice(N, rng.integers(1, N + 1), replace=False).tolist()) if r != ROUNDS // 2 else []
        arrived = {pair for pair in sorted(pairs) if rng.random() > 0.2}
        k = [steps] * N if equal else rng.integers(1, steps + 1, N).tolist()
        out.append(GraphRound(r, nodes, arrived, k, 0.05 * 0.97**r))
    return out


def full_rounds(seed: int, directed: bool, lr: float = 0.05) -> list[GraphRound]:
    """Rounds of a constant graph, in which all nodes work and all messages arrive."""
    pairs = random_graph(np.random.default_rng(seed), directed)
    return [GraphRound(r, list(range(N)), pairs, [1] * N, lr) for r in range(ROUNDS)]


def edges_of(r: GraphRound) -> Edges:
    pairs = np.array(sorted(r.arrived | {(j, i) for i, j in r.arrived}), dtype=np.int64).reshape(-1, 2)
    return Edges(N, pairs, np.array([tuple(p) in r.arrived for p in pairs.tolist()], dtype=bool))


def play(algorithm: Algorithm, problem: Any, rounds: Sequence[GraphRound], x0: np.ndarray) -> list[ServerState]:
    population, start = population_of(problem), torch.from_numpy(x0)
    played = [recorded_round(r.index, r.nodes, population, steps=r.steps, lr=r.lr, edges=edges_of(r)) for r in rounds]
    return [server for server, _ in simulate(algorithm, gradient_of(problem), played, start, population)]


def node(servers: Sequence[ServerState], name: str = "x") -> np.ndarray:
    return np.stack([server[f"node_{name}"].numpy() for server in servers])


def same(ours: np.ndarray, theirs: Any) -> None:
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-10, atol=1e-12)


def case(seed: int, noise: float = 0.1) -> tuple[Any, np.ndarray]:
    return oracles.random_quadratics(seed, N, D, noise=noise), np.random.default_rng(seed).standard_normal(D)
