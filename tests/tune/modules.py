"""Models that wait or die during a run, like a trial on a slow machine or a lost node."""

import os
import time
from glob import glob
from pathlib import Path

from tests.runtime.modules import Quadratic, Quadratics
from tests.runtime.tiny import Net


class Named(Quadratics):
    """Data whose clients are on the nodes `red` and `blue`."""

    client_nodes = ("red", "blue") * 3


class Seeded(Quadratic):
    """A model whose loss is infinite from the second step on, unless the seed is 0."""

    def __init__(self, dim: int = 3, seed: int = 0):
        super().__init__(dim)
        self.seed = seed

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if self.seed == 0 else loss * float("inf")


class Held(Quadratic):
    """A model that waits from the time a file like `after` exists until a file `gate` exists; "": never waits."""

    def __init__(self, dim: int = 3, after: str = "", gate: str = ""):
        super().__init__(dim)
        self.after, self.gate = after, gate

    def training_step(self, batch, batch_idx):
        while self.gate and not os.path.exists(self.gate) and glob(self.after):
            time.sleep(0.05)
        return super().training_step(batch, batch_idx)


class Mortal(Quadratic):
    """A model that ends its process once a file like `after` exists, unless the file `marker` exists, which it then
    writes.
    """

    def __init__(self, dim: int = 3, after: str = "", marker: str = ""):
        super().__init__(dim)
        self.after, self.marker = after, marker

    def training_step(self, batch, batch_idx):
        if self.marker and not os.path.exists(self.marker) and glob(self.after):
            Path(self.marker).touch()
            os._exit(1)
        return super().training_step(batch, batch_idx)


class Logging(Net):
    """A model that logs `own` in training, `f1` on the test set, and `accuracy` on other data."""

    def training_step(self, batch, batch_idx):
        self.log("train_own", 1.0)
        return super().training_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        self.log("test_f1", 1.0)

    def validation_step(self, batch, batch_idx):
        self.log("val_acc", 1.0)
