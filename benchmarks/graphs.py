"""Exactness of methods on graphs when nodes come and go: the worst node's distance from the optimum.

    python -m benchmarks.graphs [ROUNDS [METHODS]]

It runs every method without a server, and FedAvg and FOCUS for comparison, on strongly convex quadratics with full
gradients (8 nodes, R^5, condition number 2) under five random processes of nodes and messages, and prints the table of
docs/measurements.md. It takes about five minutes for 800 rounds on a quiet machine. The bias of the methods that are
not exact is computed in closed form by

    python -m benchmarks.graphs 0
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from raylfl.core.arrays import Floats, Ints

os.environ.setdefault("OMP_NUM_THREADS", "1")

PROBLEM: dict[str, Any] = {
    "base": ["data/dense_quadratics", "model/dense_quadratic"],
    "dtype": "float64",
    "data": {"init_args": {"num_clients": 8, "dim": 5, "condition": 2.0}},
    "partition": {"name": "natural"},
    "eval": {"every": 0},
    "checkpoint": {"every": 0},
    "runtime": {"backend": "local"},
}
MARKOV = {"name": "markov", "p_on": 0.1, "p_off": 0.1}
PROCESSES: dict[str, dict[str, Any]] = {
    "full": {},
    "p = 0.5": {"participation": {"name": "bernoulli", "p": 0.5}},
    "unequal p": {"participation": {"name": "bernoulli", "p": [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9]}},
    "Markov": {"participation": MARKOV},
    "Markov, lost": {"participation": MARKOV, "link": {"name": "bernoulli", "q": 0.3}},
}
UNDIRECTED = (
    "dsgd",
    "dsgdm",
    "extra",
    "exact_diffusion",
    "nids",
    "gradient_tracking",
    "kgt",
    "led",
    "proxskip",
)
DIRECTED = ("sgp", "push_diging", "push_pull")
SERVER = ("fedavg", "focus")


def distance(algorithm: str, process: dict[str, Any], rounds: int, folder: str) -> str:
    """The final relative distance of the worst node (or of the server's model, if there is a server), as text."""
    import raylfl
    from raylfl.errors import NonFinite

    config = {
        **PROBLEM,
        **process,
        "rounds": rounds,
        "algorithm": {"name": algorithm},
        "topology": {"name": "exponential" if algorithm in DIRECTED else "ring"},
        "local": {"batch_size": "full", "steps": 2, "lr": 0.02 if algorithm == "focus" else 0.1},
        "logging": {"dir": folder, "report": False},
    }
    try:
        last = raylfl.run(config).metrics[-1]
    except NonFinite:
        return "diverges"
    found = float(last.get("global/worst_distance", last["global/distance"]))
    return f"{found:.0e}" if found < 20 else "diverges"


def stationary_mean(
    h: Floats, b: Floats, mixing: Callable[[Ints], Floats], p: Floats, lr: float, steps: int, beta: float = 0.0
) -> Floats:
    """The mean [N, d] of the nodes' stationary points for f_i = x^T H_i x / 2 - b_i^T x, where node i works with p_i.

    A round is an affine map z -> M z + c of all rows z = (x_i, m_i), with m <- beta m + H x - b and x <- x - lr m in
    each local step, and x <- W x; working nodes are drawn independently in every round, so that E z = E[M] E z + E[c].
    mixing: W [N, N] of the working nodes, the identity elsewhere.
    """
    n, d = b.shape
    one = np.block([[np.eye(d), -lr * np.eye(d)], [np.zeros((d, d)), np.eye(d)]])
    locals_, mean, offset = [], np.zeros((2 * n * d, 2 * n * d)), np.zeros(2 * n * d)
    for hi, bi in zip(h, b, strict=True):
        gradient = np.block([[np.eye(d), np.zeros((d, d))], [hi, beta * np.eye(d)]])
        step, add = one @ gradient, one @ np.concatenate([np.zeros(d), -bi])
        whole, moved = np.eye(2 * d), np.zeros(2 * d)
        for _ in range(steps):
            whole, moved = step @ whole, step @ moved + add
        locals_.append((whole, moved))
    for works in product((False, True), repeat=n):
        chance = float(np.prod(np.where(works, p, 1 - p)))
        if not chance:
            continue
        m, c = np.eye(2 * n * d), np.zeros(2 * n * d)
        for i in np.flatnonzero(works):
            part = slice(2 * d * i, 2 * d * (i + 1))
            m[part, part], c[part] = locals_[i]
        x, kept = np.diag([1.0, 0.0]), np.diag([0.0, 1.0])
        w = np.kron(np.kron(mixing(np.flatnonzero(works)), x) + np.kron(np.eye(n), kept), np.eye(d))
        mean, offset = mean + chance * w @ m, offset + chance * w @ c
    found: Floats = np.linalg.solve(np.eye(len(mean)) - mean, offset).reshape(n, 2, d)[:, 0]
    return found


def biases() -> None:
    """Prints the worst node's |E x_i - x*| / |x*| of the methods that are not exact."""
    from raylfl.core.mixing import Edges
    from raylfl.data.synthetic import DenseQuadratics

    data = DenseQuadratics(num_clients=8, dim=5, condition=2.0)
    optimum = data.optimum().numpy()

    def ring(nodes: Ints) -> Floats:
        pairs = np.array([[i, (i + k) % 8] for i in range(8) for k in (1, 7)])
        w: Floats = np.eye(8)
        w[np.ix_(nodes, nodes)] = Edges(8, pairs, np.ones(16, dtype=bool)).doubly(nodes).matrix
        return w

    def exponential(nodes: Ints) -> Floats:  # all masses are 1 while all nodes work
        pairs = np.array([[i, (i + k) % 8] for i in range(8) for k in (1, 2, 4)])
        return Edges(8, pairs, np.ones(24, dtype=bool), directed=True).column(nodes).matrix

    print("| method | graph | full | p = 0.5 | unequal p |")
    print("| --- | --- | --- | --- | --- |")
    unequal = np.array(PROCESSES["unequal p"]["participation"]["p"])
    methods = (("dsgd", "ring", ring, 0.0), ("dsgdm", "ring", ring, 0.9), ("sgp", "exponential", exponential, 0.0))
    for method, graph, w, beta in methods:
        cells = []
        for p in (np.ones(8), np.full(8, 0.5), unequal):
            if method == "sgp" and p.min() < 1:  # not affine: steps are divided by masses
                cells.append("")
                continue
            x = stationary_mean(data.h.numpy(), data.b.numpy(), w, p, 0.1, 2, beta)
            cells.append(f"{np.linalg.norm(x - optimum, axis=1).max() / np.linalg.norm(optimum):.0e}")
        print(f"| `{method}` | {graph} |", " | ".join(cells), "|", flush=True)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 800
    methods = sys.argv[2].split(",") if len(sys.argv) > 2 else (*SERVER, *UNDIRECTED, *DIRECTED)
    if not rounds:
        biases()
        return 0
    print("| method | graph |", " | ".join(PROCESSES), "|")
    print("| --- | --- |", " | ".join("---" for _ in PROCESSES), "|")
    for algorithm in methods:
        graph = "server" if algorithm in SERVER else "exponential" if algorithm in DIRECTED else "ring"
        cells = []
        for process in PROCESSES.values():
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cells.append(distance(algorithm, process, rounds, folder))
        print(f"| `{algorithm}` | {graph} |", " | ".join(cells), "|", flush=True)
    print()
    biases()
    return 0


if __name__ == "__main__":
    sys.exit(main())
