"""The networks of other platforms' benchmarks, as a user's LightningModules."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn


class Classifier(LightningModule):
    """A classifier of images whose scores are those of `net`."""

    net: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.net(x)
        return scores

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        scores = self(x)
        self.log("loss", F.cross_entropy(scores, y))
        self.log("accuracy", (scores.argmax(1) == y).float().mean())


class Pfl(Classifier):
    """pfl-research's network for CIFAR-10 (`simple_cnn`): 3x3x32, 3x3x64, max-pool, 128, 10; 1,626,442 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
            *(nn.Flatten(), nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
        )


class Tutorial(Classifier):
    """PyTorch's tutorial network for CIFAR-10, in BlazeFL's benchmark: 62,006 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        )


class SigmoidLogistic(Classifier):
    """FLUTE's logistic regression on MNIST: cross-entropy of sigmoid(W x + b); 7,850 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Sigmoid())


def parameters(model: type[Classifier]) -> int:
    """The number of parameters of a network."""
    with torch.device("meta"):
        return sum(p.numel() for p in model().parameters())
