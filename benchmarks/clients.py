"""Many clients: rounds of 10^5 and of 10^6 clients, 100 of them in each, in one process in turns."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import psutil

from benchmarks.pages import table
from raylfl.algorithms import ALGORITHMS
from raylfl.config.load import load_config
from raylfl.experiment.assemble import assemble
from raylfl.experiment.parts import Experiment
from raylfl.heterogeneity.trace import encode_row
from raylfl.runtime.round.loop import Federation, RoundRecord
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.startup.process import set_up

COUNTS = (100_000, 1_000_000)
METHODS = ("fedavg", "scaffold", "focus", "mifa", "fedaware", "fedacs")
CONFIG: dict[str, Any] = {
    "name": "bench-clients",
    "model": {"name": "logistic"},
    "data": {"name": "synthetic_images", "init_args": {"shape": [1, 4, 4], "num_train": max(COUNTS), "num_test": 10}},
    "partition": {"name": "iid"},
    "participation": {"name": "uniform", "size": 100},
    "local": {"steps": 5, "batch_size": 1, "lr": 0.05},
    "eval": {"every": 0},
    "runtime": {"backend": "local"},
}
WARM_UP = 5


def measure(rounds: int = 60) -> list[dict[str, Any]]:
    """A row for each number of clients and method: processor seconds of set-up, milliseconds of a round, bytes."""
    set_up()
    experiments: dict[int, tuple[Experiment, dict[str, float]]] = {}
    for count in COUNTS:
        started, before = time.process_time(), psutil.Process().memory_info().rss
        experiment = assemble(load_config({**CONFIG, "num_clients": count, "rounds": WARM_UP + rounds}))
        setup = {"setup_s": time.process_time() - started}
        setup["setup_mb"] = (psutil.Process().memory_info().rss - before) / 1e6
        experiments[count] = experiment, setup
    rows = []
    for method in METHODS:
        running = {count: Rounds(of_method(experiment, method)) for count, (experiment, _) in experiments.items()}
        for _ in range(WARM_UP + rounds):
            for one in running.values():
                one.advance()
        for count, one in running.items():
            rows.append({"clients": count, "method": method, **experiments[count][1], **one.measured()})
    return rows


def of_method(experiment: Experiment, method: str) -> Experiment:
    """The experiment with another method, and the same data and partition."""
    algorithm = ALGORITHMS.get(method).cls()
    return replace(experiment, algorithm=algorithm, setup=replace(experiment.setup, algorithm=algorithm))


class Rounds:
    """The rounds of a run in this process, one at a time."""

    def __init__(self, experiment: Experiment):
        total = experiment.config.top.rounds
        self.records = Federation.of(experiment, LocalBackend(experiment.setup)).rounds(total)
        self.seconds, self.sizes = list[float](), list[int]()

    def advance(self) -> None:
        """Carries out the next round."""
        started = time.process_time()
        record: RoundRecord = next(self.records)
        line = encode_row(record.row)
        self.seconds.append(time.process_time() - started)
        self.sizes.append(len(line))

    def measured(self) -> dict[str, float]:
        """Medians over the rounds after WARM_UP: processor milliseconds, and bytes in participation.jsonl."""
        return {"round_ms": 1e3 * median(self.seconds[WARM_UP:]), "row_bytes": median(self.sizes[WARM_UP:])}


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The part `clients` of docs/measurements.md."""
    (few, many), cells = COUNTS, {(row["clients"], row["method"]): row for row in rows}
    body = []
    for method in METHODS:
        one, other = cells[few, method], cells[many, method]
        body.append(
            {
                "method": f"`{method}`",
                f"round of {few:,}": f"{one['round_ms']:.1f} ms",
                f"round of {many:,}": f"{other['round_ms']:.1f} ms",
                "ratio": f"{other['round_ms'] / one['round_ms']:.2f}",
                "a line of participation.jsonl": f"{other['row_bytes'] / 1e3:.1f} kB",
            }
        )
    setups = [cells[count, METHODS[0]] for count in COUNTS]
    few_s, many_s = (f"{row['setup_s']:.1f} s and {row['setup_mb']:.0f} MB" for row in setups)
    about = f"Data and partition take {few_s} of set-up for {few:,} clients, {many_s} for {many:,}."
    return f"\n{table(body)}\n\n{about}\n"
