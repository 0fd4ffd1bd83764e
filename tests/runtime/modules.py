"""A user's own models and data as an importable module, for tests."""

import random

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import TensorDataset

from raylfl.data.image import ImageData, ImageTransform
from raylfl.models import MODELS


class Quadratic(LightningModule):
    """A model with samples (H [d, d], b [d]): the mean over the batch of x'Hx/2 - b'x."""

    def __init__(self, dim: int = 3):
        super().__init__()
        self.x = nn.Parameter(torch.ones(dim))

    def training_step(self, batch, batch_idx):
        hessian, b = batch
        return (0.5 * torch.einsum("i,nij,j->n", self.x, hessian, self.x) - b @ self.x).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Quadratics:
    """One sample a client, so that a full batch is the client's own quadratic."""

    def __init__(self, clients: int = 6, dim: int = 3, seed: int = 0):
        rng = np.random.default_rng(seed)
        half = rng.standard_normal((clients, dim, dim))
        self.hessians = half @ half.transpose(0, 2, 1) / dim + np.eye(dim)
        self.b = rng.standard_normal((clients, dim))
        self.client_indices = [[i] for i in range(clients)]

    def train_dataset(self):
        return TensorDataset(torch.from_numpy(self.hessians), torch.from_numpy(self.b))

    def optimum(self):
        return torch.from_numpy(np.linalg.solve(self.hessians.mean(0), self.b.mean(0)))


class Repeated(Quadratics):
    """Client i has i copies of its sample: unequal sizes, and still its own quadratic for a full batch."""

    def __init__(self):
        super().__init__()
        counts = np.arange(6)
        self.copies = np.repeat(np.arange(6), counts)
        self.client_indices = np.split(np.arange(len(self.copies)), np.cumsum(counts)[:-1])

    def train_dataset(self):
        return TensorDataset(torch.from_numpy(self.hessians[self.copies]), torch.from_numpy(self.b[self.copies]))


class Counting(LightningModule):
    """A step whose loss depends on the number of steps before it in the same local work."""

    def __init__(self):
        super().__init__()
        self.body, self.steps = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.steps += 1
        return nn.functional.cross_entropy(self.body(x), y) / self.steps


class Noisy(LightningModule):
    """Dropout, a BatchNorm, logging, and draws from the global generators."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.body(x + 0.01 * random.random() + 0.01 * np.random.rand()), y)
        self.log("train_loss", loss)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.body(x)
        self.log_dict(
            {"val_loss": nn.functional.cross_entropy(logits, y), "val_acc": (logits.argmax(1) == y).float().mean()}
        )


class DigitsModule(LightningDataModule):
    """A LightningDataModule that has the attributes of the interface after `setup`."""

    def setup(self, stage=None):
        from sklearn.datasets import load_digits

        source = load_digits()
        x = torch.from_numpy(source.images / 16.0)[:, None].float()
        y = torch.from_numpy(source.target).long()
        self.train_dataset = TensorDataset(x[:1000], y[:1000])
        self.test_dataset = TensorDataset(x[1000:1200], y[1000:1200])
        self.targets = y[:1000]


class Augmented(ImageData):
    """Bytes as images of two channels, shifted and mirrored."""

    def __init__(self):
        images = torch.randint(0, 256, (100, 2, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(100) % 10
        transform = ImageTransform((0.4, 0.5), (0.2, 0.3), augment=True)
        self.hold((images[:80], labels[:80]), (images[80:], labels[80:]), 10, transform)


class Plain(LightningModule):
    """LeNet-5 that has no faster form, so that its gradients are autograd's."""

    def __init__(self):
        super().__init__()
        self.layers = MODELS.get("lenet5").cls(in_shape=(1, 28, 28)).layers

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
