"""A small transformer that predicts the next character of a text."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric

from raylfl.components.options import Doc, Ge
from raylfl.errors import BadValue
from raylfl.models import MODELS
from raylfl.models.base import ShippedModel
from raylfl.models.stack import Dropout


class Perplexity(Metric):
    """Perplexity: the exponential of the mean cross-entropy over all characters of an evaluation."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, loss: Tensor, count: int) -> None:
        """Adds `count` characters whose mean cross-entropy is `loss`."""
        self.total += loss.detach().double() * count
        self.count += count

    def compute(self) -> Tensor:
        """The perplexity of all characters added so far."""
        return torch.exp(self.total / self.count)


class Block(nn.Module):
    """A transformer block: x + attention(norm(x)), then x + mlp(norm(x)); attention is causal."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs [B, T, width] of inputs [B, T, width]."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        later = x.new_full(scores.shape[-2:], -torch.inf).triu(1)
        attended = (scores + later).softmax(-1) @ v  # vmap has no rule for the fused kernel
        x = x + self.dropout(self.out(attended.transpose(-3, -2).flatten(-2)))
        mixed: Tensor = self.dropout(self.mlp(self.norm2(x)))
        return x + mixed


@MODELS.register("text_lm", paper="Vaswani et al. 2017; Radford et al. 2019")
class TextLM(ShippedModel):
    """A small decoder-only transformer over characters; its loss is the mean cross-entropy of the next character.

    Batches are (x [B, T], y [B, T]), int64 codes of T characters. Evaluations log loss, accuracy and perplexity.
    17,562 parameters on `texts`.
    in_shape: the longest context, [T]; taken from the data if the config leaves it out.
    num_classes: the number of characters; taken from the data if the config leaves it out.
    width: the width of the residual stream, a multiple of `heads`.
    """

    from_data: ClassVar[tuple[str, ...]] = ("in_shape", "num_classes")

    def __init__(
        self,
        in_shape: tuple[int, ...] = (32,),
        num_classes: int = 64,
        width: Annotated[int, Ge(1)] = 32,
        heads: Annotated[int, Ge(1), Doc("the number of attention heads")] = 2,
        blocks: Annotated[int, Ge(1), Doc("the number of layers, each an attention and a perceptron")] = 1,
        dropout: Dropout = 0.0,
        lr: float = 0.1,
    ):
        super().__init__()
        if width % heads:
            raise BadValue("width", got=width, need=f"a multiple of heads={heads}")
        self.save_hyperparameters()
        self.characters, self.places = nn.Embedding(num_classes, width), nn.Embedding(in_shape[0], width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)
        self.perplexity = Perplexity()

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, T, num_classes] of the next character."""
        z = self.characters(x) + self.places.weight[: x.shape[-1]]
        logits: Tensor = self.head(self.norm(self.blocks(z)))
        return logits

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Mean cross-entropy of the next characters."""
        x, y = batch
        return F.cross_entropy(self(x).flatten(0, 1), y.flatten())

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Logs `loss`, `accuracy` (the rate at which the likeliest character is correct) and `perplexity`."""
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        self.perplexity.update(loss, y.numel())
        self.log("loss", loss, batch_size=len(y))
        self.log("accuracy", (logits.argmax(-1) == y).to(logits.dtype).mean(), batch_size=len(y))
        self.log("perplexity", self.perplexity)
