"""Modules as users write them that the recorded step must leave to autograd. `# here`: the line that a reason names."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.core.user_modules import CLASSES, Dense, Net


class Branches(Dense):
    """A network that looks at a value; the operator after it has a keyword argument."""

    def forward(self, x):
        x = x * 2 if x.mean() > 0 else x  # here
        return super().forward(torch.add(x, x.abs(), alpha=3))


class Lists(Dense):
    def forward(self, x):
        return super().forward(x * len(set(x[:, 0, 0].round().tolist())))  # here


class NumpyGradient(torch.autograd.Function):
    """The identity; its gradient is halved where numpy finds a large entry."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g / 2 if np.abs(g.numpy()).max() > 10 else g  # here


class ArraysInBackward(Dense):
    def forward(self, x):
        return NumpyGradient.apply(super().forward(x))


class Prints(Dense):
    def forward(self, x):
        return super().forward(x * (2 if "nan" in str(x) else 1))  # here


class Splits(Dense):
    def forward(self, x):
        first, second = torch.tensor_split(super().forward(x), (x[:, 0, 0] > 9).sum()[None])  # here
        return torch.cat([2 * first, second])


class Products(Dense):
    """A network with `prod`, whose gradient has other bits under any dispatch mode of torch."""

    def forward(self, x):
        return super().forward(x) * (1 + self.first(x.flatten(1))).prod(1, keepdim=True)  # here


class Masked(Dense):
    def training_step(self, batch, batch_idx):
        x, y = batch
        kept = y != 1
        return F.cross_entropy(self(x)[kept], y[kept])  # here


class WrittenMask(Dense):
    """A mask made from a shape, into which the step then writes labels."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        kept = torch.ones(len(y), dtype=torch.bool)
        kept &= y != 1
        return F.cross_entropy(self(x)[kept], y[kept])  # here


class Packed(Net):
    def build(self):
        self.rnn, self.out = nn.GRU(8, 7, batch_first=True), nn.Linear(7, CLASSES)

    def forward(self, x):
        lengths = torch.arange(len(x)) % 5 + 1
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)  # here
        return self.out(self.rnn(packed)[1][-1])


class PythonDraws(Dense):
    def forward(self, x):
        return super().forward(x + random.random())


class NumpyDraws(Dense):
    def forward(self, x):
        return super().forward(x + np.random.rand())


class Counts(Dense):
    def prepare(self):
        self.count = 0

    def forward(self, x):
        self.count += 1
        return super().forward(x)


class WritesTeacher(Dense):
    """A network with a running mean of its weights, as frozen parameters."""

    def prepare(self):
        self.teacher = nn.Linear(CLASSES, CLASSES).requires_grad_(False)

    def forward(self, x):
        self.teacher.weight.mul_(0.9)
        return self.teacher(super().forward(x))


class LogsItem(Dense):
    def log(self, name, value):
        assert isinstance(value, float)

    def forward(self, x):
        self.log("mean", x.mean().item())  # here
        return super().forward(x)


class ReplacesData(Dense):
    def forward(self, x):
        self.last.bias.data = torch.zeros(CLASSES)  # here
        return super().forward(x)


class Texts(Dense):
    def batch(self, size):
        return {"x": super().batch(size), "name": "a"}

    def training_step(self, batch, batch_idx):
        return super().training_step(batch["x"], batch_idx)
