"""Kill points: where tests take a process down, to see that nothing is lost.

RAYLFL_FAULT names a file of lines `phase:round`. The process that first comes to one of them takes it off the list
and dies as by `kill -9`, so every line kills once. Phases: draw, train, collect, aggregate, commit, log, checkpoint in
the process of the round loop; work (before a worker's share of a round) and worked (after it) in workers on Ray.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

Fault = Callable[[str, int], None]  # (phase, round): called where a test may inject a fault
VARIABLE = "RAYLFL_FAULT"


def kill_point() -> Fault:
    """What to call as a phase of a round is reached; does nothing where the environment names no file."""
    if VARIABLE not in os.environ:
        return lambda phase, r: None
    path = Path(os.environ[VARIABLE])
    mine = path.with_name(f"{path.name}.{os.getpid()}")

    def strike(phase: str, r: int) -> None:
        try:
            if f"{phase}:{r}" not in path.read_text().split():
                return
            path.rename(mine)  # only one of several processes can
        except FileNotFoundError:
            return
        mine.write_text("\n".join(line for line in mine.read_text().split() if line != f"{phase}:{r}"))
        mine.rename(path)
        os.kill(os.getpid(), signal.SIGKILL)

    return strike
