"""Modules that shard themselves over the processes of a worker."""

import os
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torchmetrics.classification import MulticlassAccuracy


class Block(nn.Module):
    """A transformer's block of two heads: attention, then a network of two layers; tokens [n, t, 8]."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.before, self.after = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x):
        y = self.before(x)
        q, k, v = (layer(y).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


class Net(nn.Module):
    """Two blocks on the four numbers of a point as tokens."""

    def __init__(self, dropout: float, norm: bool):
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 8))
        self.blocks = nn.Sequential(Block(), nn.Dropout(dropout), Block())
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.norm(self.blocks(x[:, :, None] * self.first).mean(1)))


class Transformer(LightningModule):
    """A transformer that is sharded by FSDP2, by tensor parallelism or not at all."""

    def __init__(self, by: str = "fully_shard", dropout: float = 0.0, norm: bool = False):
        super().__init__()
        self.by, self.net = by, Net(dropout, norm)

    def configure_model(self):
        if self.device_mesh is None or self.by == "nothing":
            return
        blocks = self.net.blocks[0], self.net.blocks[2]
        if self.by == "fully_shard":
            for part in (*blocks, self.net):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])
            return
        up, down = ColwiseParallel(), RowwiseParallel()
        plan = {"q": up, "k": up, "v": up, "out": down, "up": up, "down": down}
        for block in blocks:
            parallelize_module(block, self.device_mesh["tensor_parallel"], plan)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Counting(Transformer):
    """A transformer whose steps depend on a counter among its attributes, and which logs in evaluations."""

    def __init__(self, by: str = "fully_shard"):
        super().__init__(by, dropout=0.3, norm=True)
        self.steps, self.hits = 0, MulticlassAccuracy(3, average="micro")

    def training_step(self, batch, batch_idx):
        self.steps += 1
        return super().training_step(batch, batch_idx) * self.steps

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", nn.functional.cross_entropy(logits, y))
        self.hits.update(logits, y)
        self.log("val_acc", self.hits)


class Mortal(Transformer):
    """A transformer whose second process ends itself once, in its tenth step, if there is a file `armed`."""

    steps = iter(range(10**6))  # of the process

    def __init__(self, folder: str, by: str = "fully_shard"):
        super().__init__(by)
        self.folder = Path(folder)

    def training_step(self, batch, batch_idx):
        (self.folder / f"pid.{os.getpid()}").touch()
        if dist.is_initialized() and dist.get_rank() == 1 and next(self.steps) == 9:
            with suppress(FileNotFoundError):
                (self.folder / "armed").unlink()
                os._exit(7)
        return super().training_step(batch, batch_idx)


class Raising(Transformer):
    """A transformer that fails on one point, in all of its processes."""

    def training_step(self, batch, batch_idx):
        if self.training and bool((batch[0] > 3.75).any()):
            raise ValueError("a bad point")
        return super().training_step(batch, batch_idx)


class Hooked(Transformer):
    def on_train_start(self):
        pass
