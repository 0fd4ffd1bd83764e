"""Centralised training: the mini-batches of the client that owns all data have the gradient of F in expectation."""

import json

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import TensorDataset

from tests.runtime.measured import rounds_of
from tests.shares import also

SIZES = np.array([1, 2, 5, 12])
STEPS, BATCH, ETA = 100, 10, 2.0**-20


class Owners:
    """Data in which the samples of client i are unit vectors e_i."""

    def __init__(self):
        owner = np.repeat(np.arange(4), SIZES)
        self.samples = torch.eye(4, dtype=torch.float64)[owner]
        self.client_indices = [np.flatnonzero(owner == i) for i in range(4)]

    def train_dataset(self):
        return TensorDataset(self.samples)


class Linear(LightningModule):
    """A model in which the loss of sample e is -e'x, so that x counts the drawn samples."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(4))

    def training_step(self, batch, batch_idx):
        return -(batch[0] @ self.x).mean()


@pytest.mark.parametrize(("weights", "idle"), [also("uniform", False), ("uniform", True), ("data_size", False)])
def test_mini_batches_of_the_pooled_data_hold_each_client_by_its_weight(tmp_path, weights, idle):
    """The weight of a client without samples is shared by the others in proportion to theirs."""
    owned = [owner.tolist() for owner in Owners().client_indices]
    (tmp_path / "partition.json").write_text(json.dumps({str(i): at for i, at in enumerate([*owned, []])}))
    config = {
        "rounds": 1,
        "dtype": "float64",
        "data": {"class_path": "tests.runtime.test_pooled.Owners"},
        "model": {"class_path": "tests.runtime.test_pooled.Linear"},
        "partition": {"name": "file", "path": str(tmp_path / "partition.json")} if idle else {"name": "natural"},
        "algorithm": {"name": "centralized"},
        "local": {"steps": STEPS, "batch_size": BATCH, "lr": ETA},
        "runtime": {"backend": "local"},
    }
    shares = rounds_of(config, [f"weights={weights}"]).params.numpy() / (ETA * STEPS)
    w = np.full(4, 0.25) if weights == "uniform" else SIZES / 20
    assert shares.sum() == pytest.approx(1)
    assert (abs(shares - w) < 5 * np.sqrt(w * (1 - w) / (STEPS * BATCH))).all()  # standard errors
