"""The networks of other platforms' benchmarks, as a user's LightningModules."""

from typing import Any

import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.peers.networks import blaze, flute, pfl


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
    """pfl-research's network for CIFAR-10."""

    def __init__(self) -> None:
        super().__init__()
        self.net = pfl()


class Tutorial(Classifier):
    """The network of BlazeFL's benchmark."""

    def __init__(self) -> None:
        super().__init__()
        self.net = blaze()


class SigmoidLogistic(Classifier):
    """FLUTE's logistic regression."""

    def __init__(self) -> None:
        super().__init__()
        self.net = flute()


class NormedDense(Classifier):
    """A small dense network with batch normalisation, for images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
