"""Fault injection: kill points at which tests end a process, to check that no work is lost.

The environment variable RAYLFL_FAULT has the path of a file with lines `phase:round`. The first process that reaches
one of these points removes the point's line from the file and ends as by `kill -9`. Each line thus kills one process.
In the process of the round loop, the points draw, train, collect, aggregate and commit are before the phase of this
name, and the points log and checkpoint are after it. In workers on Ray, the point work is before the local work of a
call, and the point worked is after it; the point exchange is before an exchange of sums between workers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

Fault = Callable[[str, int], None]  # (phase, round): called where a test may inject a fault
VARIABLE = "RAYLFL_FAULT"


def kill_point() -> Fault:
    """The function to call at each kill point, with phase and round; without effect if RAYLFL_FAULT is not set now."""
    if VARIABLE not in os.environ:
        return lambda phase, r: None
    path = Path(os.environ[VARIABLE])
    mine = path.with_name(f"{path.name}.{os.getpid()}")

    def strike(phase: str, r: int) -> None:
        try:
            if f"{phase}:{r}" not in path.read_text().split():
                return
            path.rename(mine)  # succeeds in one of several processes only
        except FileNotFoundError:
            return
        mine.write_text("\n".join(line for line in mine.read_text().split() if line != f"{phase}:{r}"))
        mine.rename(path)
        os.kill(os.getpid(), signal.SIGKILL)

    return strike
