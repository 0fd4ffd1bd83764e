"""What the proof of fast steps costs, and what a module pays that must take the reference step."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any
from unittest import mock

from benchmarks import rounds
from benchmarks.floor import floor_seconds, plain_rounds
from benchmarks.pages import table
from benchmarks.workloads import USERS
from raylfl.core.oracle import LoopOracle
from raylfl.core.vectorized import VectorizedOracle
from raylfl.replay.recorded.steps import RecordedSteps

COMPARED = 200  # rounds of the run whose comparisons are timed
REFERENCE = {"backend": "local", "vectorize": "never", "step": "autograd", "layout": "contiguous"}
ROUNDS = {"W1": 20, "W2": 6, "W3": 20, "W4": 14, "W5": 10}  # of the reference
COMPARISONS: tuple[tuple[type, str], ...] = (
    (VectorizedOracle, "_prove"),
    (LoopOracle, "_prove"),
    (RecordedSteps, "_compare"),
)


def measure(name: str) -> dict[str, Any]:
    """A workload's row.

    comparisons: the share of processor time that comparisons of fast steps with the reference take in a run of 200
    rounds in process, start-up included. reference, to_plain: the median round of clients one by one by the reference
    step, divided by that of the bare loop and of the plain loop, which are measured before and after.
    """
    before = floor_seconds(USERS[name], ROUNDS[name] // 2, plain_rounds)
    run = rounds.measure(name, "the reference step", REFERENCE, ROUNDS[name], of=USERS)
    plain = median(before[1:] + floor_seconds(USERS[name], ROUNDS[name] // 2, plain_rounds)[1:])
    ratios = {"reference": run.ratio, "to_plain": run.round_ms / 1e3 / plain}
    return {"workload": name, "comparisons": share_of_comparisons(name), **ratios}


def share_of_comparisons(name: str) -> float:
    """`comparisons` of a workload, as in `measure`."""
    spent, inside = [0.0], [False]

    def timed(plain: Callable[..., Any]) -> Callable[..., Any]:
        def comparison(*arguments: Any, **options: Any) -> Any:
            if inside[0]:  # one comparison within another
                return plain(*arguments, **options)
            inside[0], began = True, time.process_time()
            try:
                return plain(*arguments, **options)
            finally:
                inside[0] = False
                spent[0] += time.process_time() - began

        return comparison

    began = time.process_time()
    with ExitStack() as stack:
        for owner, method in COMPARISONS:
            stack.enter_context(mock.patch.object(owner, method, timed(getattr(owner, method))))
        rounds.run_seconds(USERS[name], COMPARED, {"backend": "local"})
    return spent[0] / (time.process_time() - began)


def page(rows: list[dict[str, Any]]) -> str:
    """The part `steps` of docs/measurements.md."""
    return table(
        [
            {
                "workload": row["workload"],
                "comparisons": f"{row['comparisons']:.1%}",
                "reference / bare loop": f"{row['reference']:.2f}",
                "reference / plain loop": f"{row['to_plain']:.2f}",
            }
            for row in rows
        ]
    )
