"""Fault injection: kill points at which tests end a process, to check that no work is lost.

The environment variable RAYLFL_FAULT has the path of a folder with files `phase:round`. The first process that reaches
one of these points removes its file and ends as by `kill -9`. In the process of the round loop, the points draw, train,
collect, aggregate and commit are before the phase of this name, and the points log and checkpoint are after it. In
workers on Ray, the points work and worked are before and after the local work of a call, and the point exchange is
before an exchange of sums between workers.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Fault = Callable[[str, int], None]  # (phase, round): called where a test may inject a fault
VARIABLE = "RAYLFL_FAULT"


def kill_point() -> Fault:
    """The function to call at each kill point, with phase and round; without effect if RAYLFL_FAULT is not set now."""
    if VARIABLE not in os.environ:
        return lambda phase, r: None
    folder = Path(os.environ[VARIABLE])

    def strike(phase: str, r: int) -> None:
        with suppress(FileNotFoundError):
            (folder / f"{phase}:{r}").unlink()  # succeeds in one of several processes only
            os.kill(os.getpid(), signal.SIGKILL)

    return strike
