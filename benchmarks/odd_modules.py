"""Modules and data as some users write them, for the comparisons of runs (`differential.py`)."""

import random
from collections import Counter, deque

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, TensorDataset

CLASSES = 3
WIDTH = 4


class Points:
    """Forty-eight points of three classes, whose owners have unequal numbers of them.

    form: tensors, items (read one by one), dicts, or moved (with a transform that draws).
    """

    def __init__(self, form: str = "tensors", owners: int = 6):
        rng = np.random.default_rng(5)
        labels = rng.permutation(np.arange(48) % CLASSES)
        self.x = torch.from_numpy(rng.standard_normal((48, WIDTH)) + np.eye(CLASSES, WIDTH)[labels]).float()
        self.targets, self.form = torch.from_numpy(labels), form
        cuts = np.sort(rng.choice(np.arange(1, 48), owners - 1, replace=False))
        self.client_indices = np.split(np.arange(48), cuts)
        if form == "moved":
            self.train_transform = lambda x: x + 0.1 * torch.randn_like(x)

    def train_dataset(self) -> Dataset:
        return TensorDataset(self.x, self.targets) if self.form in ("tensors", "moved") else Items(self)

    def test_dataset(self) -> Dataset:
        return TensorDataset(self.x[::2], self.targets[::2]) if self.form in ("tensors", "moved") else Items(self)


class Items(Dataset):
    """The points one by one, as pairs or dicts."""

    def __init__(self, points: Points):
        self.points = points

    def __len__(self) -> int:
        return len(self.points.x)

    def __getitem__(self, k: int) -> object:
        x, y = self.points.x[k], self.points.targets[k]
        return {"x": x, "y": y} if self.points.form == "dicts" else (x, y)


class Odd(LightningModule):
    """A dense network; the other modules change a part of it."""

    def __init__(self, lr: float = 0.02):
        super().__init__()
        self.lr, self.first, self.last = lr, nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)
        self.prepare()

    def prepare(self) -> None:
        """Makes further parts."""

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x))

    def pair(self, batch: object) -> tuple[Tensor, Tensor]:
        return (batch["x"], batch["y"]) if isinstance(batch, dict) else tuple(batch)  # type: ignore[arg-type]

    def training_step(self, batch: object, batch_idx: int) -> object:
        x, y = self.pair(batch)
        return F.cross_entropy(self(x), y)

    def test_step(self, batch: object, batch_idx: int) -> None:
        x, y = self.pair(batch)
        self.log("loss", F.cross_entropy(self(x), y), batch_size=len(y))

    def configure_optimizers(self) -> object:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Dropout(Odd):
    def hidden(self, x):
        return F.dropout(super().hidden(x), 0.3, self.training)


class BatchNorm(Odd):
    def prepare(self):
        self.norm = nn.BatchNorm1d(6)

    def hidden(self, x):
        return self.norm(super().hidden(x))


class CumulativeNorm(BatchNorm):
    def prepare(self):
        self.norm = nn.BatchNorm1d(6, momentum=None)


class Recurrent(Odd):
    def prepare(self):
        self.cell = nn.GRU(1, 6, batch_first=True)

    def hidden(self, x):
        return self.cell(x[..., None])[1][0]


class Attention(Odd):
    def prepare(self):
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def hidden(self, x):
        h = super().hidden(x)[:, None].expand(-1, 3, -1)
        return self.attention(h, h, h, need_weights=False)[0].mean(1)


class Convolution(Odd):
    def prepare(self):
        self.conv = nn.Conv1d(1, 3, 3)

    def hidden(self, x):
        return self.conv(x[:, None]).flatten(1).relu()


class Branches(Odd):
    def hidden(self, x):
        return super().hidden(x * 2 if x.mean() > 0 else x)


class ReadsValues(Odd):
    def hidden(self, x):
        return super().hidden(x * (1 + abs(x.sum().item()) / 100))


class ReadsArrays(Odd):
    def hidden(self, x):
        return super().hidden(x * float(np.median(x.detach().numpy())))


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g / 2


class CustomGradient(Odd):
    def hidden(self, x):
        return _Halved.apply(super().hidden(x))


class WritesBatch(Odd):
    def training_step(self, batch, batch_idx):
        self.pair(batch)[0].sub_(0.5).mul_(2)
        return super().training_step(batch, batch_idx)


class WritesWeights(Odd):
    def hidden(self, x):
        with torch.no_grad():
            self.first.weight.clamp_(-0.4, 0.4)
        return super().hidden(x)


class CountsSteps(Odd):
    def prepare(self):
        self.count = 0

    def training_step(self, batch, batch_idx):
        self.count += 1
        return super().training_step(batch, batch_idx) * (1 + 0.1 * self.count)


class KeepsLists(Odd):
    def prepare(self):
        self.losses, self.seen, self.recent = [], Counter(), deque([0.0], maxlen=2)

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.losses.append(float(loss))
        self.recent.append(float(loss))
        return loss * (1 + 0.01 * len(self.losses) + 0.01 * self.recent[0])


class CountsInBuffers(Odd):
    def prepare(self):
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("number", torch.zeros((), dtype=torch.int64))

    def training_step(self, batch, batch_idx):
        self.steps += 1
        self.number += 1
        return super().training_step(batch, batch_idx) / self.steps * (1 + 0.1 * self.number)


class AssignsBuffers(Odd):
    def prepare(self):
        self.register_buffer("centre", torch.zeros(6))
        self.register_buffer("kept", torch.ones(6), persistent=False)

    def hidden(self, x):
        h = super().hidden(x)
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * h.detach().mean(0)
            self.kept = self.kept * 0.5
        return h - self.centre * self.kept


class ForwardHook(Odd):
    def prepare(self):
        self.first.register_forward_hook(lambda module, args, output: output * 1.5)


class GradientHook(Odd):
    def prepare(self):
        self.first.weight.register_hook(lambda g: g * 0.5)


class HooksInStep(Odd):
    def hidden(self, x):
        h = super().hidden(x)
        if h.requires_grad:
            h.register_hook(lambda g: g.clamp(-0.01, 0.01))
        return h


class Spectral(Odd):
    def prepare(self):
        self.first = parametrizations.spectral_norm(self.first)


class WeightNorm(Odd):
    def prepare(self):
        self.first = parametrizations.weight_norm(self.first)


class Tied(Odd):
    def prepare(self):
        self.back = nn.Linear(6, 6, bias=False)
        self.other = nn.Linear(6, 6, bias=False)
        self.other.weight = self.back.weight

    def hidden(self, x):
        return self.other(torch.relu(self.back(super().hidden(x))))


class Unused(Odd):
    def prepare(self):
        self.unused, self.number = nn.Linear(3, 3), nn.Parameter(torch.ones(()))


class Frozen(Odd):
    def prepare(self):
        self.first.requires_grad_(False)


class FreezesInStep(Odd):
    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            x, y = self.pair(batch)
            h = self.hidden(x)
        return F.cross_entropy(self.last(h), y)


class Checkpointed(Odd):
    def hidden(self, x):
        return checkpoint(super().hidden, x, use_reentrant=False)


class PythonDraws(Odd):
    def hidden(self, x):
        return super().hidden(x * random.uniform(0.9, 1.1))


class NumpyDraws(Odd):
    def hidden(self, x):
        return super().hidden(x + float(np.random.normal(scale=0.1)))


class SeedsAll(Odd):
    def training_step(self, batch, batch_idx):
        torch.manual_seed(3)
        random.seed(3)
        return super().training_step(batch, batch_idx) + 0 * torch.rand(())


class ByNumber(Odd):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + 0.1 * batch_idx)


class Logs(Odd):
    def training_step(self, batch, batch_idx):
        x, y = self.pair(batch)
        scores = self(x)
        self.log("accuracy", (scores.argmax(1) == y).float().mean())
        self.log_dict({"size": float(len(y)), "largest": scores.detach().max()}, reduce_fx="max")
        return {"loss": F.cross_entropy(scores, y), "more": scores.detach()}


class Penalty(Odd):
    """A gradient penalty: derivatives of a derivative."""

    def training_step(self, batch, batch_idx):
        x, y = self.pair(batch)
        x = x.detach().requires_grad_()
        loss = F.cross_entropy(self(x), y)
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + g.square().sum()


class HalfPrecision(Odd):
    def training_step(self, batch, batch_idx):
        with torch.autocast("cpu", torch.bfloat16):
            return super().training_step(batch, batch_idx)


class Fourier(Odd):
    def hidden(self, x):
        return super().hidden(torch.fft.fft(x).real)


class Scheduled(Odd):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class LocalHooks(Odd):
    def on_train_start(self):
        self.scale = 1.0

    def on_train_epoch_end(self):
        self.scale *= 0.9

    def on_before_optimizer_step(self, optimizer):
        for p in self.parameters():
            if p.grad is not None:
                p.grad.mul_(self.scale)


class BatchHooks(Odd):
    def on_train_batch_start(self, batch, batch_idx):
        self.factor = 1 + batch_idx % 2

    def on_after_backward(self):
        self.last.weight.grad.mul_(self.factor)


class TwoModes(Odd):
    def prepare(self):
        self.norm = nn.BatchNorm1d(6)

    def training_step(self, batch, batch_idx):
        self.norm.eval()
        loss = super().training_step(batch, batch_idx)
        self.norm.train()
        return loss

    def hidden(self, x):
        return self.norm(super().hidden(x))


class Weighted(Odd):
    """A mean over the samples of some labels only."""

    def training_step(self, batch, batch_idx):
        x, y = self.pair(batch)
        mask = (y > 0).float()
        return (F.cross_entropy(self(x), y, reduction="none") * mask).sum() / mask.sum().clamp(min=1)


class Doubles(Odd):
    """Parameters of two dtypes, of which a run makes one."""

    def prepare(self):
        self.last.double()

    def forward(self, x):
        return self.last(self.hidden(x).to(self.last.weight.dtype))


MODULES = [cls.__name__ for cls in list(globals().values()) if isinstance(cls, type) and issubclass(cls, Odd)]
