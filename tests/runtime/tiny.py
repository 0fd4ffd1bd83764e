"""A problem so small that a whole run takes a tenth of a second, with every kind of state that a checkpoint holds."""

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

from raylfl.errors import BadConfig

TINY = {
    "name": "tiny",
    "rounds": 6,
    "num_clients": 6,
    "data": {"class_path": "tests.runtime.tiny.Points"},
    "model": {"class_path": "tests.runtime.tiny.Net"},
    "participation": {"name": "uniform", "size": 3},
    "link": {"name": "bernoulli", "q": 0.3},
    "local": {"steps": {"uniform": [1, 3]}, "batch_size": 4, "lr": 0.05},
    "eval": {"every": 3},
    "checkpoint": {"every": 2, "keep": 1},
    "runtime": {"backend": "local"},
    "logging": {"report": False},
}
# half the time, without proofs and recordings of faster steps: for tests in which the form of a step is no matter
ONE_BY_ONE = {**TINY, "runtime": {"backend": "local", "vectorize": "never", "step": "autograd"}}
LONG = {**ONE_BY_ONE, "rounds": 100_000, "eval": {"every": 0, "inconsistency": False}, "checkpoint": {"every": 0}}
PERFECT = {**TINY, "participation": {"name": "full"}, "link": {"name": "perfect"}}
OWNED = {  # each of six clients has ten consecutive points
    **PERFECT,
    "num_clients": None,
    "data": {"class_path": "tests.runtime.tiny.Points", "init_args": {"owners": 6}},
    "partition": {"name": "natural"},
}
FOCUS = {**ONE_BY_ONE, "algorithm": {"name": "focus"}, "checkpoint": {"every": 1, "keep": 3}}  # one state per client


class Points:
    """Sixty labelled points of three Gaussians in four dimensions; with owners, ten consecutive points per client.

    spoilt: the index of a point that is nan.
    """

    def __init__(self, owners: int | None = None, spoilt: int | None = None):
        rng = np.random.default_rng(0)
        labels = np.arange(60) % 3
        points = rng.standard_normal((60, 4)) + 2.0 * np.eye(3, 4)[labels]
        if spoilt is not None:
            points[spoilt] = np.nan
        self.x, self.targets = torch.from_numpy(points).float(), torch.from_numpy(labels)
        self.client_indices = None if owners is None else np.array_split(np.arange(60), owners)

    def train_dataset(self):
        return TensorDataset(self.x, self.targets)

    def test_dataset(self):
        return TensorDataset(self.x[::3], self.targets[::3])


class Augmented(Points):
    """Points that a training transform moves far away, and evaluations leave unchanged."""

    def __init__(self):
        super().__init__(owners=6)

    def train_transform(self, x):
        return x + 50.0

    def test_transform(self, x):
        return x


class Items(Points):
    """Samples fetched one by one, of which those in `broken` are damaged."""

    def __init__(self, owners: int | None = None, broken: Sequence[int] = ()):
        super().__init__(owners)
        self.broken = broken

    def train_dataset(self):
        return self

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        if k in self.broken:
            raise OSError(f"damaged: point {k}")
        return self.x[k], self.targets[k]


class Unlabelled:
    """Points without labels."""

    def train_dataset(self):
        return TensorDataset(Points().x)


class Empty:
    """A data class that offers nothing."""


class OddTest(Points):
    """A test set with one dimension too many."""

    def test_dataset(self):
        return TensorDataset(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))


class WrongOptimum(Points):
    """Data with the optimum of another problem."""

    def optimum(self):
        return torch.zeros(2)


class Net(LightningModule):
    """Two layers with dropout (randomness a step) and BatchNorm (buffers)."""

    def __init__(self, norm: bool = True, dropout: float = 0.2, width: int = 6):
        super().__init__()
        middle = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.body = nn.Sequential(nn.Linear(4, width), middle, nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.body(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Dawdling(Net):
    """A network that takes a random time, so that the first task may end last."""

    def training_step(self, batch, batch_idx):
        time.sleep(random.SystemRandom().uniform(0.0, 0.01))
        return super().training_step(batch, batch_idx)


class Rude(Net):
    """A network that draws from every global generator in each call and then, if `seeds`, seeds all of them."""

    def __init__(self, norm: bool = True, seeds: bool = False):
        super().__init__(norm)
        self.seeds = seeds

    def training_step(self, batch, batch_idx):
        x, y = batch
        noise = torch.randn_like(x) + np.random.standard_normal() + random.gauss(0.0, 1.0)
        loss = super().training_step((x + 0.1 * noise, y), batch_idx)
        if self.seeds:
            torch.manual_seed(1)
            np.random.seed(1)
            random.seed(1)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))


def rude(seeds: bool, norm: bool = True) -> dict:
    """The overrides of TINY with this module, measured in several pieces."""
    model = {"class_path": "tests.runtime.tiny.Rude", "init_args": {"norm": norm, "seeds": seeds}}
    return {**TINY, "rounds": 4, "model": model, "eval": {"every": 2, "global": True, "batch_size": 5}}


class Gated(Net):
    """A network that writes its process id into `folder`; while `closed` or `closed.<id>` exists, it writes `waiting`
    and waits.

    While `slow` exists, each step takes 0.3 s longer.
    """

    def __init__(self, folder: str, width: int = 6):
        super().__init__(norm=False, width=width)
        self.folder = Path(folder)

    def training_step(self, batch, batch_idx):
        while any((self.folder / gate).exists() for gate in ("closed", f"closed.{os.getpid()}")):
            (self.folder / "waiting").touch()
            time.sleep(0.05)
        (self.folder / str(os.getpid())).touch()
        time.sleep(0.3 * (self.folder / "slow").exists())
        return super().training_step(batch, batch_idx)


class Choosy(Gated):
    """A gated network that cannot be made on nodes with the environment variable NO_CUDA_HERE."""

    def __init__(self, folder: str, width: int = 6):
        super().__init__(folder, width)
        if "NO_CUDA_HERE" in os.environ:
            raise BadConfig("torch is built without CUDA")


class Cursed(Net):
    """A network that fails on certain points: it raises an error, hangs, kills its process, or returns no loss."""

    def __init__(self, raises: int = -1, hangs: int = -1, dies: int = -1, strays: int = -1):
        super().__init__(norm=False)
        self.trouble = {raises: "raises", hangs: "hangs", dies: "dies", strays: "strays"}
        self.points = Points().x

    def training_step(self, batch, batch_idx):
        for point, kind in self.trouble.items():
            if point >= 0 and bool((batch[0] == self.points[point]).all(dim=1).any()):
                if kind == "raises":
                    raise ValueError("cursed")
                if kind == "hangs":
                    time.sleep(3600)
                if kind == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                return batch[0]
        return super().training_step(batch, batch_idx)
