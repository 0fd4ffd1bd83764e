"""Split learning: traffic at the cut, parameters before it, and cuts that do not separate the model."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylfl.core.cut import Cut
from raylfl.errors import BadConfig

B = 4  # images per batch


class Trained(nn.Module):
    """A network with the cross-entropy of a batch of images."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)


class LeNet(Trained):
    """A network of convolutions, pooling, fully connected layers and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.pool, self.fc1, self.drop, self.fc2 = (nn.MaxPool2d(2), nn.Linear(16, 9), nn.Dropout(0.3), nn.Linear(9, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc2(self.drop(F.relu(self.fc1(self.pool(x).flatten(1)))))


class Block(nn.Module):
    """A block relu(conv(relu(conv(x))) + x), which contains its own skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + x)


class ResNet(Trained):
    """A network of a stem, two residual blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block1, self.block2, self.fc = nn.Conv2d(1, 3, 3), Block(), Block(), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block2(self.block1(self.stem(x))).mean((2, 3)))


class InPlace(Trained):
    """A network with an in-place activation right after the cut, as in torchvision's models."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(64, 8), nn.ReLU(inplace=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x.flatten(1))))


class Twice(Trained):
    """A network that uses one layer on both sides of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(self.middle(self.first(x.flatten(1)))))


class Pair(nn.Module):
    """A layer that returns two tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Unused(Trained):
    """A network with layers that do not lead to the loss, and one layer with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.aside, self.pair, self.last = nn.Linear(2, 2), nn.Linear(64, 2), Pair(), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.pair(x.flatten(1))
        self.aside(x)
        return self.last(x)


def batch(seed: int, size: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(size, 1, 8, 8, generator=rng), torch.randint(5, (size,), generator=rng)


def cut_of(cls: type[Trained], name: str, samples: int = B) -> tuple[Cut, nn.Module]:
    torch.manual_seed(1)
    module = cls()
    x, y = batch(0, samples)
    return Cut.after(name, module, list(module.parameters()), lambda: module.training_step((x, y), 0), samples), module


LENET = {"conv1": (3, 6, 6), "conv2": (4, 4, 4), "pool": (4, 2, 2), "fc1": (9,), "drop": (9,)}
RESNET = {"stem": (3, 6, 6), "block1": (3, 6, 6), "block2": (3, 6, 6)}
CUTS = [
    *((LeNet, cut, shape) for cut, shape in LENET.items()),
    *((ResNet, cut, shape) for cut, shape in RESNET.items()),
    (InPlace, "first", (8,)),
    (InPlace, "act", (8,)),
]


@pytest.mark.parametrize(("cls", "cut", "shape"), CUTS, ids=lambda v: v if isinstance(v, str) else None)
def test_an_activation_of_each_sample_passes_the_cut_and_the_client_half_comes_before_it(cls, cut, shape):
    for samples in (1, B):
        found, module = cut_of(cls, cut, samples)
        assert found.floats_per_sample == int(np.prod(shape))
        assert not module.get_submodule(cut)._forward_hooks
    names = list(dict(module.named_children()))
    before = names[: names.index(cut) + 1] if cut != "pool" else ["conv1", "conv2"]
    assert found.client_width == sum(p.numel() for name in before for p in getattr(module, name).parameters())
    assert 0 < found.client_width < sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("cls", "cut", "reason"),
    [
        (ResNet, "block1.conv2", "skips the cut"),
        (ResNet, "block2.conv1", "skips the cut"),
        (Twice, "middle", "used on both sides"),
        (Twice, "first", "runs once a forward pass"),
        (Unused, "idle", "runs once a forward pass"),
        (Unused, "aside", "on the way to the loss"),
        (Unused, "pair", "whose output is one tensor"),
        (LeNet, "conv3", "must be a layer of LeNet: conv1, conv2"),
    ],
)
def test_a_cut_that_does_not_separate_is_refused(cls: type[Trained], cut: str, reason: str):
    with pytest.raises(BadConfig, match=reason) as refused:
        cut_of(cls, cut)
    assert f"algorithm.cut={cut}" in str(refused.value)
