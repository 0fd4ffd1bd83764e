"""The cost of a round on a graph, against a round of star FedAvg with the same gradient work.

    python -m benchmarks.graph_rounds [ROUNDS [local | ray | MODEL]]

It prints the table of docs/measurements.md: the median milliseconds of a round of FedAvg, and the medians of the
ratios of other methods' rounds to it. In one process the rounds take turns, and processor time and wall time are
measured (mixing uses all cores, as FedAvg's sums do); on Ray with two workers, runs follow each other and wall time is
measured. Every client takes five local steps of 20 samples a round: 64 nodes with LeNet-5, 200 with the MLP
784-128-10, and 1,000 with a small MLP (64-64-10), for which messages are expensive compared with gradients. It takes
about five minutes for 10 rounds on a quiet machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from itertools import pairwise
from math import nan
from statistics import median
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

WORK: dict[str, Any] = {
    "partition": {"name": "iid"},
    "local": {"batch_size": 20, "steps": 5, "lr": 0.01},
    "eval": {"every": 0},
    "checkpoint": {"every": 0},
}
LENET = {"base": ["data/synthetic_images", "model/lenet5"], "data": {"init_args": {"shape": [1, 28, 28]}}}
MLP = {
    "base": ["data/synthetic_images", "model/mlp"],
    "data": {"init_args": {"shape": [1, 28, 28], "num_train": 20000}},
    "model": {"init_args": {"hidden": [128]}},
}
SMALL = {"base": ["data/synthetic_images", "model/mlp"], "data": {"init_args": {"num_train": 20000}}}
HERE, RAY = {"backend": "local"}, {"backend": "ray", "workers": 2}
PLACES: tuple[tuple[int, str, dict[str, Any], dict[str, Any]], ...] = (
    (64, "LeNet-5", LENET, HERE),
    (64, "LeNet-5", LENET, RAY),
    (200, "784-128-10", MLP, HERE),
    (1000, "64-64-10", SMALL, HERE),
)
FIRST = 3  # first rounds, not measured: they record steps and fill caches
METHODS = (("fedavg", "star"), ("dsgd", "ring"), ("led", "torus"), ("push_pull", "exponential"))


class Seconds(NamedTuple):
    """Processor and wall seconds."""

    processor: float
    wall: float

    @staticmethod
    def now() -> Seconds:
        return Seconds(time.process_time(), time.perf_counter())


def in_turns(configs: Sequence[dict[str, Any]], rounds: int) -> list[list[Seconds]]:
    """The times of each round of each config, in this process, one round of each after the other."""
    from raylfl.config.load import load_config
    from raylfl.experiment.assemble import assemble
    from raylfl.runtime.round.loop import Federation
    from raylfl.runtime.workers.backend import LocalBackend

    runs = []
    for config in configs:
        experiment = assemble(load_config({**config, "rounds": 10**6}))
        runs.append(Federation.of(experiment, LocalBackend(experiment.setup)).rounds(10**6))
    took: list[list[Seconds]] = [[] for _ in runs]
    for _ in range(FIRST + rounds):
        for run, seconds in zip(runs, took, strict=True):
            started = Seconds.now()
            next(run)
            now = Seconds.now()
            seconds.append(Seconds(now.processor - started.processor, now.wall - started.wall))
    return [seconds[FIRST:] for seconds in took]


def on_ray(config: dict[str, Any], rounds: int) -> list[Seconds]:
    """The wall seconds of each round of a run."""
    import raylfl

    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        options = {"logging": {"dir": folder, "report": False}, "rounds": rounds + FIRST}
        raylfl.run({**config, **options}, [], lambda progress: stamps.append(time.perf_counter()))
    return [Seconds(nan, b - a) for a, b in pairwise(stamps[FIRST - 1 :])]


def main() -> int:
    from raylfl.startup.process import set_up

    set_up()
    warnings.simplefilter("ignore")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    heads = [f"`{method}`, {graph}" for method, graph in METHODS[1:]]
    print("| nodes | model | where | time | `fedavg`, ms |", " | ".join(heads), "|")
    print("| --- | --- | --- | --- | --- |", " | ".join("---" for _ in heads), "|")
    for count, name, model, runtime in PLACES:
        if wanted not in ("", runtime["backend"], name):
            continue
        base = {**WORK, **model, "num_clients": count, "runtime": runtime}
        configs = [{**base, "algorithm": {"name": method}, "topology": {"name": graph}} for method, graph in METHODS]
        here = runtime is HERE
        took = in_turns(configs, rounds) if here else [on_ray(config, rounds) for config in configs]
        for clock in ("processor", "wall") if here else ("wall",):
            star, *others = ([getattr(t, clock) for t in times] for times in took)
            known = star if here else [median(star)] * len(star)  # not in turns
            cells = [f"{median(a / b for a, b in zip(each, known, strict=True)):.2f}" for each in others]
            place = "in process" if here else "Ray, 2 workers"
            start = f"| {count:,} | {name} | {place} | {clock} | {1000 * median(star):.0f} |"
            print(start, " | ".join(cells), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
