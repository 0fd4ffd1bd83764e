"""Split learning: two backward passes joined at the cut are one, bit for bit; what crosses is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.sfl import SFL
from raylfl.algorithms.split import SSL, SplitFed
from raylfl.core.algorithm import Algorithm, Work
from raylfl.core.flat import FlatModule
from raylfl.core.local import LocalResult, LocalRule, run_local
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.errors import BadConfig

B = 4  # images a batch


class Trained(nn.Module):
    """Cross-entropy of a batch of images."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)


class LeNet(Trained):
    """Convolutions, pooling, fully connected layers, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.pool, self.fc1, self.drop, self.fc2 = (
            nn.MaxPool2d(2),
            nn.Linear(16, 9),
            nn.Dropout(0.3),
            nn.Linear(9, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc2(self.drop(F.relu(self.fc1(self.pool(x).flatten(1)))))


class Block(nn.Module):
    """relu(conv(relu(conv(x))) + x): the connection that skips stays inside."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + x)


class ResNet(Trained):
    """A stem, two residual blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block1, self.block2, self.fc = nn.Conv2d(1, 3, 3), Block(), Block(), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block2(self.block1(self.stem(x))).mean((2, 3)))


class InPlace(Trained):
    """An activation in place right behind the layer that is cut after, as torchvision's models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(64, 8), nn.ReLU(inplace=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x.flatten(1))))


class Twice(Trained):
    """One layer used on both sides of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(self.middle(self.first(x.flatten(1)))))


def batch(seed: int) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    return Batch((torch.randn(B, 1, 8, 8, generator=rng), torch.randint(5, (B,), generator=rng)), B)


def oracle(cls: type[Trained], cut: str | None = None) -> LoopOracle:
    torch.manual_seed(1)
    return LoopOracle(FlatModule(cls(), torch.float32, torch.device("cpu")), split_after=cut)


def gradient(of: LoopOracle, seed: int) -> Tensor:
    _, g = of.gradients(of.flat.params.clone()[None], [batch(seed)], lambda c: seed)
    return g[0]


LENET = {"conv1": (3, 6, 6), "conv2": (4, 4, 4), "pool": (4, 2, 2), "fc1": (9,), "drop": (9,)}
RESNET = {"stem": (3, 6, 6), "block1": (3, 6, 6), "block2": (3, 6, 6)}
CUTS = [
    *((LeNet, cut, shape) for cut, shape in LENET.items()),
    *((ResNet, cut, shape) for cut, shape in RESNET.items()),
    (InPlace, "first", (8,)),
    (InPlace, "act", (8,)),
]
cases = pytest.mark.parametrize(("cls", "cut", "shape"), CUTS, ids=lambda v: v if isinstance(v, str) else None)


@cases
def test_the_halves_give_the_whole_gradient_bit_for_bit(cls: type[Trained], cut: str, shape: tuple[int, ...]):
    whole, halves = oracle(cls), oracle(cls, cut)
    for seed in range(3):
        assert torch.equal(gradient(halves, seed), gradient(whole, seed))
        assert gradient(whole, seed).abs().sum() > 0


@cases
def test_what_crosses_the_cut_is_counted_every_step(cls: type[Trained], cut: str, shape: tuple[int, ...]):
    """As many numbers up (activations) as down (their gradient): those of one way."""
    halves = oracle(cls, cut)
    for steps in (1, 2):
        gradient(halves, steps)
        assert halves.split is not None
        assert halves.split.exchanged_floats == steps * B * int(np.prod(shape))


@cases
def test_the_client_half_is_what_comes_before_the_cut(cls: type[Trained], cut: str, shape: tuple[int, ...]):
    halves, names = oracle(cls, cut), list(dict(cls().named_children()))
    gradient(halves, 0)
    before = names[: names.index(cut) + 1] if cut != "pool" else ["conv1", "conv2"]
    mine = sum(p.numel() for name in before for p in getattr(halves.module, name).parameters())
    assert halves.split is not None
    assert halves.split.client_width == mine
    assert 0 < mine < halves.width


def test_evaluation_uses_the_whole_model_and_sends_nothing():
    halves, whole = oracle(LeNet, "conv2"), oracle(LeNet)
    x, _ = batch(0).content
    with torch.no_grad():
        halves.module.eval()
        whole.module.eval()
        assert torch.equal(halves.module(x), whole.module(x))
    assert halves.split is not None
    assert halves.split.exchanged_floats == 0


@pytest.mark.parametrize(
    ("cls", "cut", "reason"),
    [
        (ResNet, "block1.conv2", "skips the cut"),
        (ResNet, "block2.conv1", "skips the cut"),
        (Twice, "middle", "used on both sides"),
        (Twice, "first", "runs once a forward pass"),
        (LeNet, "conv3", "must be a layer of LeNet: conv1, conv2"),
    ],
)
def test_a_cut_that_does_not_separate_is_refused(cls: type[Trained], cut: str, reason: str):
    with pytest.raises(BadConfig, match=reason) as refused:
        gradient(oracle(cls, cut), 0)
    assert f"algorithm.cut={cut}" in str(refused.value)


def solve(algorithm: Algorithm) -> tuple[LocalResult, LoopOracle]:
    """Three local steps of one client as a worker takes them: the oracle cut where the algorithm says."""
    rule = LocalRule(lr=0.1, momentum=0.5)
    made = oracle(LeNet, algorithm.cut)
    work = Work(np.array([3.0]), np.array([3.0]), np.ones(1), 0.1)
    down = {"x": made.flat.params.clone()}
    result = run_local(algorithm, made, lambda t, rows: [batch(t)], lambda t, row: t, down, {}, work, rule)
    return result, made


@pytest.mark.parametrize(
    ("split", "whole"),
    [(SSL(cut="conv2"), SFL()), (SplitFed(cut="conv2"), FedAvg())],
    ids=["ssl", "splitfed"],
)
def test_a_client_s_local_steps_end_at_the_same_bits(split: Algorithm, whole: Algorithm):
    (ours, halves), (theirs, uncut) = solve(split), solve(whole)
    assert uncut.split is None
    assert halves.split is not None
    assert halves.split.exchanged_floats == 3 * B * 4 * 4 * 4
    assert ours.uploads.keys() == theirs.uploads.keys()
    for name, rows in ours.uploads.items():
        assert torch.equal(rows, theirs.uploads[name])
        assert rows.abs().sum() > 0
    assert np.array_equal(ours.losses, theirs.losses)
