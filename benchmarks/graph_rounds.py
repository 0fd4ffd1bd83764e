"""The cost of a round on a graph, against a round of star FedAvg with the same gradient work.

    python -m benchmarks.graph_rounds [ROUNDS]

prints seconds a round (the median; processor time in process, wall time on Ray) of FedAvg and of methods on graphs: 64
nodes in process and on Ray with two workers (LeNet-5), and 1,000 nodes in process (a small MLP). Every client takes
five local steps of 16 samples a round. About five minutes for 10 rounds on a quiet machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

WORK: dict[str, Any] = {
    "partition": {"name": "iid"},
    "local": {"batch_size": 16, "steps": 5, "lr": 0.01},
    "eval": {"every": 0},
    "checkpoint": {"every": 0},
}
LENET = {"base": ["data/synthetic_images", "model/lenet5"], "data": {"init_args": {"shape": [1, 28, 28]}}}
MLP = {"base": ["data/synthetic_images", "model/mlp"], "data": {"init_args": {"num_train": 16000}}}
HERE, RAY = {"backend": "local"}, {"backend": "ray", "workers": 2}
PLACES: tuple[tuple[int, dict[str, Any], dict[str, Any], Callable[[], float]], ...] = (
    (64, LENET, HERE, time.process_time),
    (64, LENET, RAY, time.perf_counter),
    (1000, MLP, HERE, time.process_time),
)
FIRST = 3  # rounds that are not measured: recordings and cold caches
METHODS = (("dsgd", "ring"), ("led", "torus"), ("push_pull", "exponential"))


def seconds(config: dict[str, Any], rounds: int, clock: Callable[[], float]) -> float:
    """The median seconds of a round by this clock."""
    import raylfl

    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"logging": {"dir": folder, "report": False}, "rounds": rounds + FIRST}
        raylfl.run({**config, **options}, [], lambda progress: stamps.append(clock()))
    return median(b - a for a, b in pairwise(stamps[FIRST - 1 :]))


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print("| nodes | where | method | graph | seconds a round | of FedAvg's |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count, model, runtime, clock in PLACES:
        base = {**WORK, **model, "num_clients": count, "runtime": runtime}
        star = 0.0
        for method, graph in (("fedavg", "star"), *METHODS):
            took = seconds({**base, "algorithm": {"name": method}, "topology": {"name": graph}}, rounds, clock)
            star = star or took
            place = f"| {count} | {runtime['backend']} | `{method}` | {graph} |"
            print(f"{place} {took:.4f} | {took / star:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
