"""Lightning modules as a user writes them, without use of raylfl: layers, a forward pass, a training step."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn


class Classifier(LightningModule):
    """A module whose loss is the cross-entropy of `forward`."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class LeNet(Classifier):
    """The LeNet-5 of W1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class CNN(Classifier):
    """The CNN of W2."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.hidden, self.out = nn.Linear(64 * 4 * 4, 500), nn.Linear(500, 10)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = F.max_pool2d(F.relu(convolution(x)), 2)
        return self.out(F.relu(self.hidden(x.flatten(1))))


class Logistic(Classifier):
    """The logistic regression of W3."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(1))


class Residual(Classifier):
    """The network of W4: two hidden layers with batch normalisation, GELU and dropout, and a skip over the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(784, 128), nn.Linear(128, 128), nn.Linear(128, 10)
        self.norm1, self.norm2, self.drop = nn.BatchNorm1d(128), nn.BatchNorm1d(128), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.gelu(self.norm1(self.first(x.flatten(1)))))
        return self.out(x + self.drop(F.gelu(self.norm2(self.second(x)))))


class Rows(Classifier):
    """The transformer encoder of W5, over the 28 rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(28, 64), nn.Parameter(torch.zeros(28, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.embed(x.squeeze(1)) + self.places).mean(1))
