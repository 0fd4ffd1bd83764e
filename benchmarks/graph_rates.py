"""Which methods stay exact when nodes come and go, and how fast: on quadratics, from the maps of their rounds.

    python -m benchmarks.graph_rates [METHODS]

On f_i(x) = h_i x^2 / 2 - b_i x a round is an affine map z -> M_S z + c_S of all rows z of all nodes, S the nodes that
work. The maps of all 2^N sets S are taken from the method itself, by one round from each unit vector. Two facts follow
without a random number:

- z*, where the rows come to rest while all nodes work, is a fixed point of every map, or it is not. If it is, with
  x_i = x*, the method is exact whichever nodes work: the column `moves` is the largest |M_S z* + c_S - z*|.
- The mean square of z - z* falls by a factor per round: the spectral radius of E[M x M] (Kronecker product), for Markov
  chains that of the same map with one block for each S. It is taken on the span of the errors that rounds can reach, so
  that the invariants of a method do not count. The table shows the rounds in which the root mean square error falls to
  a tenth.

Methods whose steps are divided by masses (`sgp`, `push_diging`) are not affine, and the steps of `proxskip` are random:
benchmarks/graphs.py measures them. The table of docs/graphs.md takes about a minute.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from raylfl.core.population import Floats, Ints

os.environ.setdefault("OMP_NUM_THREADS", "1")

N, LR, STEPS = 8, 0.1, 2  # as in benchmarks/graphs.py
UNDIRECTED = ("dsgd", "dsgdm", "extra", "exact_diffusion", "nids", "gradient_tracking", "kgt", "led")
CHANCES = {"full": np.ones(N), "p = 0.5": np.full(N, 0.5), "unequal p": np.array([1, 2, 3, 4, 6, 7, 8, 9]) / 10}
CHANGE = 0.1  # of a node's Markov chain, to come and to go
TURNS = 3000  # of the power iteration for Markov chains


@dataclass(frozen=True)
class Maps:
    """The maps of a method: works [2^N, N] = the sets S, m [2^N, Z, Z], c [2^N, Z], and the rows at first z0 [Z].

    The first N numbers of z are the nodes' x.
    """

    works: Floats
    m: Floats
    c: Floats
    z0: Floats

    def rest(self) -> Floats:
        """Where the rows come to rest while all nodes work."""
        m, c = self.m[-1], self.c[-1]
        for _ in range(16):  # two rounds as one, again and again: 2^16 rounds
            m, c = m @ m, m @ c + c
        found: Floats = m @ self.z0 + c
        return found

    def moves(self, z: Floats) -> float:
        """The largest distance by which a round moves z, over all S."""
        return float(np.linalg.norm(self.m @ z + self.c - z, axis=1).max())

    def reachable(self, error: Floats) -> Floats:
        """The matrices on an orthonormal basis of all errors that rounds can reach from this one [2^N, R, R]."""
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


def maps_of(algorithm: str, h: Floats, b: Floats, pairs: Ints, directed: bool, steps: int = STEPS) -> Maps:
    """The maps of a method without a server on these edges."""
    import torch

    from raylfl.algorithms import ALGORITHMS
    from raylfl.algorithms.graph import NODE, GraphAlgorithm
    from raylfl.core.mixing import Edges
    from raylfl.core.population import Population
    from raylfl.testing import recorded_round
    from raylfl.testing.simulation import Simulation

    count, method = len(h), ALGORITHMS.get(algorithm).cls()
    assert isinstance(method, GraphAlgorithm)
    names = list(method.init_nodes(torch.zeros(1), 1))
    entries = len(names) * count
    x0, population = torch.zeros(entries + 1, dtype=torch.float64), Population.of(np.ones(count, dtype=np.int64))
    edges = Edges(count, pairs, np.ones(len(pairs), dtype=bool), directed)

    def gradient(i: int, x: torch.Tensor, r: int, t: int) -> torch.Tensor:
        return float(h[i]) * x - float(b[i])

    run = Simulation(method, gradient, x0, population)
    fresh = run.server
    units = np.concatenate([np.eye(entries), np.zeros((entries, 1))], axis=1)  # one problem a column
    start = {NODE + name: torch.from_numpy(units[k * count : (k + 1) * count]) for k, name in enumerate(names)}
    works = np.array(list(product((0.0, 1.0), repeat=count)))
    after = []
    for nodes in map(np.flatnonzero, works):
        run.restart(method, {**fresh, **{name: rows.clone() for name, rows in start.items()}}, {})
        server = run.run_round(recorded_round(0, nodes, population, steps=steps, lr=LR, edges=edges))
        after.append(np.concatenate([server[NODE + name].numpy() for name in names]))
    whole = np.stack(after)
    c = whole[:, :, -1]
    z0 = np.concatenate([fresh[NODE + name].numpy()[:, 0] for name in names])
    return Maps(works, whole[:, :, :-1] - c[:, :, None], c, z0)


def independent(works: Floats, matrices: Floats, p: Floats) -> float:
    """The factor of the mean square error per round if node i works with probability p_i in every round."""
    chances = np.where(works > 0, p, 1 - p).prod(axis=1)
    size = matrices.shape[1]
    whole = np.zeros((size * size, size * size))
    for chance, m in zip(chances, matrices, strict=True):
        if chance:
            whole += chance * np.kron(m, m)
    return float(np.abs(np.linalg.eigvals(whole)).max())


def markov(works: Floats, matrices: Floats, change: float) -> float:
    """The same if each node is a Markov chain that changes with this probability; by power iteration."""
    count, size = works.shape[1], matrices.shape[1]
    stay = np.array([[1 - change, change], [change, 1 - change]])
    blocks = np.tile(np.eye(size), (len(works), 1, 1))
    growth = []
    for _ in range(TURNS):
        mixed = blocks.reshape(*[2] * count, size, size)
        for node in range(count):
            mixed = np.moveaxis(np.tensordot(stay, mixed, axes=(1, node)), 0, node)
        blocks = matrices @ mixed.reshape(blocks.shape) @ matrices.transpose(0, 2, 1)
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
    h, b = rng.permutation(np.linspace(1, 2, N)), rng.standard_normal(N)
    hops = (1, N - 1) if algorithm in UNDIRECTED else (1, 2, 4)
    pairs = np.array([[i, (i + k) % N] for i in range(N) for k in hops])
    maps = maps_of(algorithm, h, b, pairs, algorithm not in UNDIRECTED)
    rest = maps.rest()
    bias = np.abs(rest[:N] - b.sum() / h.sum()).max()
    moves = maps.moves(rest)
    cells = [f"{bias:.0e}", f"{moves:.0e}"]
    if moves > 1e-10:
        return [*cells, *[""] * (len(CHANCES) + 1)]
    matrices = maps.reachable(maps.z0 - rest)
    factors: list[Callable[[], float]] = [lambda p=p: independent(maps.works, matrices, p) for p in CHANCES.values()]  # type: ignore[misc]
    return [*cells, *(rounds_a_digit(f()) for f in factors), rounds_a_digit(markov(maps.works, matrices, CHANGE))]


def main() -> int:
    print("| method | graph | bias, full | moves |", " | ".join([*CHANCES, "Markov"]), "|")
    print("| --- | --- | --- | --- |", " | ".join("---" for _ in range(len(CHANCES) + 1)), "|")
    for algorithm in sys.argv[1].split(",") if len(sys.argv) > 1 else (*UNDIRECTED, "push_pull"):
        graph = "ring" if algorithm in UNDIRECTED else "exponential"
        print(f"| `{algorithm}` | {graph} |", " | ".join(row(algorithm)), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
