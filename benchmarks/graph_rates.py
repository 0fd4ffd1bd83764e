"""Exactness and rates of methods on graphs when nodes come and go: on quadratics, from the maps of their rounds.

    python -m benchmarks.graph_rates [METHODS]

On f_i(x) = h_i x^2 / 2 - b_i x a round is an affine map z -> M z + c of all nodes' rows z. It depends on the set S of
working nodes and, on an undirected graph, on the edges between them on which both messages arrive. The method itself
computes the maps, in one round from each unit vector. They give two results:

- Let z* be the limit of the rows if all nodes always work. If z* is a fixed point of every map, and x_i = x* in it, the
  method is exact whichever nodes work and messages arrive. The column `moves` is the largest |M z* + c - z*|.
- The mean square of z - z* falls by a factor per round: the spectral radius of E[M x M] (Kronecker product), or for
  Markov chains of the same map with one block for each S. It is computed on the span of the errors that rounds can
  reach, because the invariants of a method do not count. The table shows the number of rounds in which the root mean
  square error falls to a tenth.

Methods that divide steps by masses (`sgp`, `push_diging`) are not affine, and the steps of `proxskip` are random:
benchmarks/graphs.py measures these. The table of docs/measurements.md takes a few minutes.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from raylfl.core.arrays import Bools, Floats, Ints

os.environ.setdefault("OMP_NUM_THREADS", "1")

N, LR, STEPS = 8, 0.1, 2  # as in benchmarks/graphs.py
UNDIRECTED = ("dsgd", "dsgdm", "extra", "exact_diffusion", "nids", "gradient_tracking", "kgt", "led")
CHANCES = {"full": np.ones(N), "p = 0.5": np.full(N, 0.5), "unequal p": np.array([1, 2, 3, 4, 6, 7, 8, 9]) / 10}
CHANGE = 0.1  # of a node's Markov chain, to come and to go
LOST = 0.3  # of the messages, in the last column
TOGETHER = 256  # maps that are taken at a time
TURNS = 600  # of the power iteration for Markov chains


@dataclass(frozen=True)
class Maps:
    """The maps of a method: m [K, Z, Z], c [K, Z], and the rows at first z0 [Z]; the first N numbers are the nodes' x.

    works [2^N, N]: the sets S; at [K]: the set of each map; share [K]: its probability, given the set. The last map is
    that of all nodes and edges.
    """

    works: Floats
    at: Ints
    share: Floats
    m: Floats
    c: Floats
    z0: Floats

    def rest(self) -> Floats:
        """The limit of the rows [Z] while all nodes work."""
        m, c = self.m[-1], self.c[-1]
        for _ in range(16):  # two rounds as one, again and again: 2^16 rounds
            m, c = m @ m, m @ c + c
        found: Floats = m @ self.z0 + c
        return found

    def moves(self, z: Floats) -> float:
        """The largest distance by which a round moves z."""
        return float(np.linalg.norm(self.m @ z + self.c - z, axis=1).max())

    def reachable(self, error: Floats) -> Floats:
        """The matrices on an orthonormal basis of all errors that rounds can reach from this one [K, R, R]."""
        q: Floats = np.zeros((len(error), 0))
        new = error[:, None]
        while new.shape[1]:
            left = new - q @ (q.T @ new)
            left = left - q @ (q.T @ left)
            u, s, _ = np.linalg.svd(left, full_matrices=False)
            fresh = u[:, s > 1e-9 * max(1.0, float(s.max()))]
            q = np.concatenate([q, fresh], axis=1)
            new = np.concatenate(list(self.m @ fresh), axis=1) if fresh.shape[1] else fresh
            new = new / np.maximum(np.linalg.norm(new, axis=0), 1e-300)
        found: Floats = q.T @ self.m @ q
        return found


def maps_of(
    algorithm: str, h: Floats, b: Floats, pairs: Ints, directed: bool, lost: float = 0.0, steps: int = STEPS
) -> Maps:
    """The maps of a method without a server on these edges; lost: the chance of each message on an undirected graph."""
    import torch

    from raylfl.algorithms import ALGORITHMS
    from raylfl.algorithms.graph import NODE, GraphAlgorithm
    from raylfl.core.mixing import Edges
    from raylfl.core.population import Population
    from raylfl.testing import recorded_round
    from raylfl.testing.simulation import Simulation

    count, method = len(h), ALGORITHMS.get(algorithm).cls()
    assert isinstance(method, GraphAlgorithm)
    first = method.init_nodes(torch.zeros(1, dtype=torch.float64), count)
    z0 = np.concatenate([rows.numpy()[:, 0] for rows in first.values()])
    units = np.concatenate([np.eye(len(z0)), np.zeros((len(z0), 1))], axis=1)  # one problem a column

    def gradient(i: int, x: torch.Tensor, r: int, t: int) -> torch.Tensor:
        return float(h[i % count]) * x - float(b[i % count])

    works = np.array(list(product((0.0, 1.0), repeat=count)))
    cases = [(k, *one) for k, now in enumerate(works > 0) for one in outcomes(pairs, now, lost)]
    after = []
    for some in (cases[k : k + TOGETHER] for k in range(0, len(cases), TOGETHER)):  # copies of the graph, side by side
        copies = np.arange(len(some))
        population = Population.of(np.ones(count * len(some), dtype=np.int64))
        ends = np.concatenate([pairs + count * k for k in copies])
        edges = Edges(population.count, ends, np.concatenate([arrives for _, arrives, _ in some]), directed)
        nodes = np.flatnonzero(np.concatenate([works[k] for k, _, _ in some]))
        run = Simulation(method, gradient, torch.zeros(units.shape[1], dtype=torch.float64), population)
        parts = np.split(units, len(first))
        start = {
            NODE + name: torch.from_numpy(np.tile(part, (len(some), 1)))
            for name, part in zip(first, parts, strict=True)
        }
        run.restart(method, {**run.server, **start}, {})
        server = run.run_round(recorded_round(0, nodes, population, steps=steps, lr=LR, edges=edges))
        rows = [server[NODE + name].numpy().reshape(len(some), count, -1) for name in first]
        after.append(np.concatenate(rows, axis=1))
    whole = np.concatenate(after)
    c, at, share = whole[:, :, -1], np.array([k for k, _, _ in cases]), np.array([chance for _, _, chance in cases])
    return Maps(works, at, share, whole[:, :, :-1] - c[:, :, None], c, z0)


def outcomes(pairs: Ints, works: Bools, lost: float) -> Iterator[tuple[Bools, float]]:
    """(which messages arrive [E], the probability) for each set of edges that carry between working nodes."""
    if not lost:
        yield np.ones(len(pairs), dtype=bool), 1.0
        return
    low, high = pairs.min(axis=1), pairs.max(axis=1)
    edges, edge = np.unique(low * len(works) + high, return_inverse=True)
    inside = np.flatnonzero([works[low[edge == e]].all() and works[high[edge == e]].all() for e in range(len(edges))])
    for carries in product((False, True), repeat=len(inside)):
        arrives = np.ones(len(edges), dtype=bool)
        arrives[inside] = carries
        yield arrives[edge], float(np.where(carries, (1 - lost) ** 2, 1 - (1 - lost) ** 2).prod())


def independent(maps: Maps, matrices: Floats, p: Floats) -> float:
    """The factor of the mean square error per round if node i works with probability p_i in every round."""
    chances = maps.share * np.where(maps.works > 0, p, 1 - p).prod(axis=1)[maps.at]
    size = matrices.shape[1]
    whole = np.zeros((size * size, size * size))
    for chance, m in zip(chances, matrices, strict=True):
        if chance:
            whole += chance * np.kron(m, m)
    return float(np.abs(np.linalg.eigvals(whole)).max())


def markov(maps: Maps, matrices: Floats, change: float) -> float:
    """The same if each node is a Markov chain that changes with this probability; by power iteration."""
    (sets, count), size = maps.works.shape, matrices.shape[1]
    weighted = maps.share[:, None, None] * matrices
    first = np.searchsorted(maps.at, np.arange(sets))  # the maps of a set follow each other
    stay = np.array([[1 - change, change], [change, 1 - change]])
    blocks = np.tile(np.eye(size), (sets, 1, 1))
    growth = []
    for _ in range(TURNS):
        mixed = blocks.reshape(*[2] * count, size, size)
        for node in range(count):
            mixed = np.moveaxis(np.tensordot(stay, mixed, axes=(1, node)), 0, node)
        moved = weighted @ mixed.reshape(blocks.shape)[maps.at] @ matrices.transpose(0, 2, 1)
        blocks = np.add.reduceat(moved, first)
        scale = float(np.trace(blocks, axis1=1, axis2=2).sum())
        growth.append(scale)
        blocks /= scale
    return float(np.exp(np.mean(np.log(growth[-TURNS // 4 :]))))


def rounds_a_digit(factor: float) -> str:
    """The rounds in which an error with this factor of its mean square falls to a tenth."""
    return "grows" if factor >= 1 - 1e-9 else f"{-2 / np.log10(factor):,.0f}"


def row(algorithm: str) -> list[str]:
    """The cells of a method."""
    rng = np.random.default_rng(0)
    h, b = rng.permutation(np.linspace(0.5, 1, N)), rng.standard_normal(N)
    hops = (1, N - 1) if algorithm in UNDIRECTED else (1, 2, 4)
    pairs = np.array([[i, (i + k) % N] for i in range(N) for k in hops])
    maps = maps_of(algorithm, h, b, pairs, algorithm not in UNDIRECTED)
    losing = maps_of(algorithm, h, b, pairs, False, LOST) if algorithm in UNDIRECTED else maps
    rest = maps.rest()
    bias = np.abs(rest[:N] - b.sum() / h.sum()).max()
    moves = max(maps.moves(rest), losing.moves(rest))
    cells = [f"{bias:.0e}", f"{moves:.0e}"]
    if moves > 1e-10:
        return [*cells, *[""] * (len(CHANCES) + 2)]
    matrices = maps.reachable(maps.z0 - rest)
    factors = [*(independent(maps, matrices, p) for p in CHANCES.values()), markov(maps, matrices, CHANGE)]
    if losing is not maps:
        factors.append(markov(losing, losing.reachable(maps.z0 - rest), CHANGE))
    return [*cells, *map(rounds_a_digit, factors), *[""] * (len(CHANCES) + 2 - len(factors))]


def main() -> int:
    print("| method | graph | bias, full | moves |", " | ".join([*CHANCES, "Markov", "Markov, lost"]), "|")
    print("| --- | --- | --- | --- |", " | ".join("---" for _ in range(len(CHANCES) + 2)), "|")
    for algorithm in sys.argv[1].split(",") if len(sys.argv) > 1 else (*UNDIRECTED, "push_pull"):
        graph = "ring" if algorithm in UNDIRECTED else "exponential"
        print(f"| `{algorithm}` | {graph} |", " | ".join(row(algorithm)), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
