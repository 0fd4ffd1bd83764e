"""VGG-9 and ResNet-18 as in SFL (Li & Lyu, NeurIPS 2023), table 3; by default without normalisation layers."""

from __future__ import annotations

from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from raylfl.components.options import Doc, Ge
from raylfl.errors import BadValue
from raylfl.models import MODELS
from raylfl.models.base import Classifier
from raylfl.models.stack import Stack, vgg_init

Norm = Literal["none", "group", "batch"]


@MODELS.register("vgg9", paper="SFL table 3; Lin 2020")
class Vgg9(Classifier):
    """VGG-9: eight 3x3 convolutions, five 2x2 max-pools, a global average pool and one linear layer.

    Channels and max-pools (M): 32,M,64,M,128,128,M,256,256,M,256,256,M, with padding 1, biases, a ReLU after each
    convolution and no normalisation; 2,308,810 parameters on CIFAR-10. Weights are initialised by torchvision's rule
    for VGG, since without normalisation torch's default makes activations nearly vanish after eight layers.
    width: channels of the first convolution; the other widths scale with it (the public code's wvgg9k1 has width 8).
    """

    def __init__(
        self,
        in_shape: tuple[int, ...] = (3, 32, 32),
        num_classes: int = 10,
        width: Annotated[int, Ge(1), Doc("channels of the first convolution")] = 32,
        lr: float = 0.1,
    ):
        stack = Stack(in_shape)
        for factors in ((1,), (2,), (4, 4), (8, 8), (8, 8)):
            for factor in factors:
                stack.conv(factor * width, 3, padding=1).relu()
            stack.pool()
        super().__init__(stack.mean().flatten().linear(num_classes).init(vgg_init), lr)


@MODELS.register("resnet18", paper="SFL table 3; He 2016; Acar 2021")
class ResNet18(Classifier):
    """ResNet-18 for small images: a 3x3 convolution, then four stages of two blocks (64, 128, 256, 512 channels).

    11,164,362 parameters on CIFAR-10 without normalisation, 11,173,962 with it. There is no max-pool, and convolutions
    have no bias.
    norm: none (SFL's tables), group (GroupNorm with `groups` groups) or batch (BatchNorm, which updates buffers: on a
    GPU the clients of such a model run one at a time).
    groups: number of groups for norm=group; it must divide `width`.
    width: channels of the first stage; each later stage has twice as many as the stage before it.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...] = (3, 32, 32),
        num_classes: int = 10,
        norm: Norm = "none",
        groups: Annotated[int, Ge(1)] = 2,
        width: Annotated[int, Ge(1), Doc("channels of the first stage")] = 64,
        lr: float = 0.1,
    ):
        if norm == "group" and width % groups:
            raise BadValue("groups", got=groups, need=f"a divisor of width={width}")
        stack = Stack(in_shape)
        channels, height, columns = stack.image()
        conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        stem = nn.Sequential(conv, _norm(norm, width, groups), nn.ReLU())
        stack.add("stem", stem, (width, height, columns), numbered=False)
        for stage in range(4):
            for place in range(2):
                stride = 2 if stage > 0 and place == 0 else 1
                before, height, columns = stack.image()
                block = BasicBlock(before, width * 2**stage, stride, norm, groups)
                shape = (width * 2**stage, -(-height // stride), -(-columns // stride))
                stack.add("block", block, shape)
        super().__init__(stack.mean().flatten().linear(num_classes), lr)


class BasicBlock(nn.Module):
    """A residual block: relu(N(conv(relu(N(conv(x))))) + shortcut(x)), where N is the normalisation layer.

    Both convolutions are 3x3. The first one has the stride and maps `before` channels to `after`. The shortcut is the
    identity if the shape does not change, otherwise a 1x1 convolution with the stride, followed by N.
    """

    def __init__(self, before: int, after: int, stride: int, norm: Norm, groups: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(norm, after, groups)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, after, groups)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            project = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, _norm(norm, after, groups))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs [B, after, ceil(H/stride), ceil(W/stride)] of inputs [B, before, H, W]."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


def _norm(norm: Norm, channels: int, groups: int) -> nn.Module:
    if norm == "group":
        return nn.GroupNorm(groups, channels)
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.Identity()
