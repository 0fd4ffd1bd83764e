"""Which methods stay exact when nodes come and go: the worst node's distance from the optimum, by method and process.

    python -m benchmarks.graphs [ROUNDS [METHODS]]

runs every method without a server, and FedAvg and FOCUS beside them, on strongly convex quadratics with full gradients
(8 nodes, R^5, condition 2), under five processes of nodes and messages, and prints the table of docs/graphs.md. About
five minutes for 800 rounds on a quiet machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

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
    """The last relative distance of the worst node (of the server's model, where there is a server), as text."""
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


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 800
    methods = sys.argv[2].split(",") if len(sys.argv) > 2 else (*SERVER, *UNDIRECTED, *DIRECTED)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
