"""Models that wait, or die, in the middle of a run: what a slow machine, or a node that is lost, does to a trial."""

from __future__ import annotations

import os
import time
from glob import glob
from pathlib import Path

from tests.runtime.modules import Quadratic


class Held(Quadratic):
    """Stands still, once a file like `after` is there, until there is a file `gate`; "" for never."""

    def __init__(self, dim: int = 3, after: str = "", gate: str = ""):
        super().__init__(dim)
        self.after, self.gate = after, gate

    def training_step(self, batch, batch_idx):
        while self.gate and not os.path.exists(self.gate) and glob(self.after):
            time.sleep(0.05)
        return super().training_step(batch, batch_idx)


class Mortal(Quadratic):
    """Ends its process, once a file like `after` is there, and leaves a file `marker`, at which it lives on."""

    def __init__(self, dim: int = 3, after: str = "", marker: str = ""):
        super().__init__(dim)
        self.after, self.marker = after, marker

    def training_step(self, batch, batch_idx):
        if self.marker and not os.path.exists(self.marker) and glob(self.after):
            Path(self.marker).touch()
            os._exit(1)
        return super().training_step(batch, batch_idx)
