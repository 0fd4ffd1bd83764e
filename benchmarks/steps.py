"""What the proof of fast steps costs, and what a module pays that must take the reference step."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any
from unittest import mock

from benchmarks.floor import floor_rounds, plain_rounds
from benchmarks.pages import table
from benchmarks.rounds import WARM_UP, run_seconds
from benchmarks.workloads import USERS
from raylfl.core.oracle import LoopOracle
from raylfl.core.threads import one_thread
from raylfl.core.vectorized import VectorizedOracle
from raylfl.replay.recorded.steps import RecordedSteps
from raylfl.runtime.round.loop import Federation

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
    rounds in process, start-up included. to_bare, to_plain: see `of_reference`.
    """
    return {"workload": name, "comparisons": share_of_comparisons(name), **of_reference(name)}


def of_reference(name: str) -> dict[str, float]:
    """The processor time of a round of clients one by one by the reference step, divided by that of two loops.

    The loops (`benchmarks.floor`) take one round each after each round of the run; medians of the ratios of neighbours.
    """
    loops = {"to_bare": floor_rounds(USERS[name]), "to_plain": plain_rounds(USERS[name])}
    ratios: dict[str, list[float]] = {loop: [] for loop in loops}
    rounds = Federation.rounds

    def in_turns(self: Federation, until: int) -> Iterator[Any]:
        records = rounds(self, until)
        while True:
            ours, record = spent(records)
            if record is None:
                return
            for loop, more in loops.items():
                ratios[loop].append(ours / spent(more)[0])
            yield record

    with mock.patch.object(Federation, "rounds", in_turns), one_thread():
        run_seconds(USERS[name], ROUNDS[name], REFERENCE)
    return {loop: median(values[WARM_UP:]) for loop, values in ratios.items()}


def spent(rounds: Iterator[Any]) -> tuple[float, Any]:
    """The processor time of the next round, and what it gives; None after the last one."""
    began = time.process_time()
    record = next(rounds, None)
    return time.process_time() - began, record


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
        run_seconds(USERS[name], COMPARED, {"backend": "local"})
    return spent[0] / (time.process_time() - began)


def page(rows: list[dict[str, Any]]) -> str:
    """The part `steps` of docs/measurements.md."""
    return table(
        [
            {
                "workload": row["workload"],
                "comparisons": f"{row['comparisons']:.1%}",
                "reference / bare loop": f"{row['to_bare']:.2f}",
                "reference / plain loop": f"{row['to_plain']:.2f}",
            }
            for row in rows
        ]
    )
