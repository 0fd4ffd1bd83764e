"""A round of `digits` on Ray beside busy neighbours: processes of normal priority that each keep one core busy."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import raylfl

WARM_UP = 3  # rounds of a run that are not counted


def beside_neighbours(workers: int, rounds: int = 40, count: int = 2) -> dict[str, Any]:
    """Medians in milliseconds of a round alone (before and after) and beside `count` busy processes; their ratio."""
    before = _round_seconds(workers, rounds)
    with busy_processes(count):
        crowded = _round_seconds(workers, rounds)
    quiet = median(before + _round_seconds(workers, rounds))
    return {
        "workers": workers,
        "neighbours": count,
        "quiet_ms": quiet * 1e3,
        "round_ms": median(crowded) * 1e3,
        "to_quiet": median(crowded) / quiet,
    }


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """A context with `count` processes that compute without pause."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _round_seconds(workers: int, rounds: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"rounds={rounds + WARM_UP}", "eval.every=0", f"runtime.workers={workers}"]
        result = raylfl.run("digits", [*overrides, "logging.report=false", f"logging.dir={folder}"])
    return [row["time/round"] for row in result.metrics[WARM_UP:]]
