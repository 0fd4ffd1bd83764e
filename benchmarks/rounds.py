"""Round times of a workload against the floor, in interleaved blocks, so that both are measured under the same load."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import raylfl
from benchmarks.floor import floor_seconds, side_by_side
from benchmarks.pages import table
from benchmarks.workloads import WORKLOADS, Workload

WARM_UP = 3  # rounds of a run that are not counted: first allocations, first calls


@dataclass(frozen=True)
class Measured:
    """Median milliseconds per round, quartiles, and the ratio to the floor measured before and after the run.

    loops: the same ratio for as many bare loops at the same time as the run has workers, without any exchange.
    """

    workload: str
    setting: str
    floor_ms: float
    round_ms: float
    quartiles_ms: tuple[float, float]
    ratio: float
    loops: float


def measure(
    name: str,
    setting: str,
    runtime: dict[str, Any],
    rounds: int,
    *overrides: str,
    of: Mapping[str, Workload] = WORKLOADS,
) -> Measured:
    """Measures the floor, a run, and the floor again."""
    workload = of[name]
    before = floor_seconds(workload, rounds // 2)
    ours = run_seconds(workload, rounds, runtime, *overrides)
    floor = median(before[1:] + floor_seconds(workload, rounds // 2)[1:])
    low, _, high = quantiles(ours, n=4)
    middle, workers = median(ours), runtime.get("workers", 1)
    loops = side_by_side(workload, rounds // 2, workers) / floor if workers > 1 else 1.0
    return Measured(name, setting, floor * 1e3, middle * 1e3, (low * 1e3, high * 1e3), middle / floor, loops)


def page_of_ratios(rows: Sequence[Mapping[str, Any]]) -> str:
    """The part `speed` of docs/measurements.md: a line per workload, a column per setting."""
    workloads = dict.fromkeys(row["workload"] for row in rows)
    cells = {(row["workload"], row["setting"]): f"{row['ratio']:.2f}" for row in rows}
    settings = dict.fromkeys(row["setting"] for row in rows)
    titles = {w: f"{w}: {WORKLOADS[w].title}" for w in workloads}
    return table([{"workload": titles[w]} | {setting: cells[w, setting] for setting in settings} for w in workloads])


def beside_fedavg(name: str, algorithm: str, runtime: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Median milliseconds of a round, of FedAvg's rounds in runs before and after, and their ratio."""
    small = "local.lr=0.005"  # small enough that all stay finite: overflowing numbers are slow
    before, ours, after = (
        run_seconds(WORKLOADS[name], rounds, runtime, f"algorithm.name={a}", small)
        for a in ("fedavg", algorithm, "fedavg")
    )
    fedavg = median(before + after)
    return {
        "workload": name,
        "algorithm": algorithm,
        "fedavg_ms": fedavg * 1e3,
        "round_ms": median(ours) * 1e3,
        "to_fedavg": median(ours) / fedavg,
    }


def evaluated(name: str, runtime: dict[str, Any], rounds: int, *overrides: str) -> dict[str, Any]:
    """Median milliseconds of a round, of a round with an evaluation on 10,000 samples, and of the evaluation alone.

    All workers evaluate; hidden: the share of the evaluation that overlaps with local work.
    """
    workload = WORKLOADS[name]
    tested = ["data.init_args.num_test=10000", *overrides]
    alone = median(run_seconds(workload, rounds, runtime, *tested))
    both = median(run_seconds(workload, rounds, runtime, "eval.every=1", *tested))
    nothing = ["participation.size=1", "local.steps=1", "local.batch_size=1"]  # next to no local work
    evaluation = median(run_seconds(workload, rounds, runtime, "eval.every=1", *tested, *nothing))
    return {
        "workload": name,
        "overrides": " ".join(overrides),
        "round_ms": alone * 1e3,
        "with_evaluation_ms": both * 1e3,
        "evaluation_ms": evaluation * 1e3,
        "hidden": 1 - (both - alone) / evaluation,
    }


def run_seconds(workload: Workload, rounds: int, runtime: dict[str, Any], *overrides: str) -> list[float]:
    """Seconds of each round of one run, warm-up left out."""
    with tempfile.TemporaryDirectory() as folder:
        result = raylfl.run(workload.config(rounds + WARM_UP, **runtime), [f"logging.dir={folder}", *overrides])
    return [row["time/round"] for row in result.metrics[WARM_UP:]]
