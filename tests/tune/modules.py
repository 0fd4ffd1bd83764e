"""A model that kills its own process, once: what a node that dies does to a trial."""

from __future__ import annotations

import os
import time

from tests.runtime.modules import Quadratic

STEPS = 0  # in this process, of runs that may die


class Mortal(Quadratic):
    """Dies at its 60th step where `marker` names a file that is not there yet, which it leaves behind."""

    def __init__(self, dim: int = 3, marker: str = ""):
        super().__init__(dim)
        self.marker = marker

    def training_step(self, batch, batch_idx):
        global STEPS
        STEPS += bool(self.marker)
        if self.marker and STEPS >= 60 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os._exit(1)
        return super().training_step(batch, batch_idx)


class Slow(Quadratic):
    """Takes its time, so that a test can come between."""

    def __init__(self, dim: int = 3, seconds: float = 0.0):
        super().__init__(dim)
        self.seconds = seconds

    def training_step(self, batch, batch_idx):
        time.sleep(self.seconds)
        return super().training_step(batch, batch_idx)
