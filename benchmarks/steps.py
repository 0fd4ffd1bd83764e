"""What the proof of fast steps costs, and what a module pays that must take the reference step."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from benchmarks import rounds
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
    rounds in process, start-up included. reference: the median round of clients one by one by the reference step,
    divided by the bare loop's, which is measured before and after.
    """
    reference = rounds.measure(name, "the reference step", REFERENCE, ROUNDS[name], of=USERS)
    return {"workload": name, "comparisons": share_of_comparisons(name), "reference": reference.ratio}


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
        [{**row, "comparisons": f"{row['comparisons']:.1%}", "reference": f"{row['reference']:.2f}"} for row in rows]
    )
