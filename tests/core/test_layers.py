"""Detection of chains of layers in modules' steps, and modules whose step is no chain."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.core.recorded.layers import Chains
from raylfl.core.vectorized import VectorizedOracle
from raylfl.models import MODELS
from raylfl.models.base import Classifier
from raylfl.models.stack import Stack
from tests.core import user_modules as users

CPU = torch.device("cpu")
SHAPES = {
    "logistic": (1, 28, 28),
    "mlp": (1, 28, 28),
    "lenet5": (1, 28, 28),
    "cnn_focus": (3, 32, 32),
    "cnn_sfl": (1, 28, 28),
    "cnn_fedaware": (3, 32, 32),
    "cnn_fedacs_cifar": (3, 32, 32),
}


def shipped(name, **options):
    torch.manual_seed(0)
    return MODELS.get(name).cls(in_shape=SHAPES.get(name, (3, 32, 32)), **options)


def batch(shape, size=3, classes=10):
    return torch.randn(size, *shape), torch.randint(0, classes, (size,))


@pytest.mark.parametrize("name", SHAPES)
def test_shipped_chains_are_found_as_they_are_built(name):
    module = shipped(name)
    chains = Chains(module)
    layers = chains.of(batch(SHAPES[name]))
    assert [type(layer) for layer in layers] == [type(layer) for layer in module.layers]
    assert all(a is b for a, b in zip(layers, module.layers, strict=True) if list(b.parameters()))
    assert chains.network is module.layers
    assert chains.order(layers) == list(range(len(list(module.parameters()))))


class LeNet(users.Net):
    """LeNet as a user might write it: layers in any order, functions between them, an accuracy beside the loss."""

    shape = (1, 28, 28)

    def build(self):
        self.out = nn.Linear(84, users.CLASSES)
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(256, 120), nn.Linear(120, 84)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), (2, 2), stride=2)
        return self.out(F.relu(self.fc2(F.relu(self.fc1(x.view(-1, 256))))))

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        accuracy = (scores.argmax(1) == y).float().mean()
        return {"loss": F.cross_entropy(scores, y), "accuracy": accuracy}


def test_a_users_chain_is_found_and_its_gradient_is_in_the_modules_order():
    module = LeNet()
    flat = FlatModule(module, torch.float64, CPU)
    chains = Chains(module)
    x, y = module.batch(5)
    content = Batch((x.double(), y), 5)
    ours, theirs = LoopOracle(flat, chains=chains), LoopOracle(flat, step="autograd")
    losses, g = ours.gradients(flat.params[None], [content], lambda c: 0)
    expected, gradient = theirs.gradients(flat.params[None], [content], lambda c: 0)
    assert len(chains.layers) == 12
    assert chains.order(chains.layers)[-2:] == [0, 1]
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(g, gradient, rtol=1e-10, atol=1e-13)


class Dense(users.Net):
    shape = (4, 4)

    def build(self):
        self.last, self.first = nn.Linear(7, users.CLASSES), nn.Linear(16, 7)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)).relu())


def test_a_users_dense_network_runs_in_whole_cohorts():
    module = Dense()
    flat = FlatModule(module, torch.float64, CPU)
    batches = [Batch((torch.randn(6, 4, 4, dtype=torch.float64), torch.randint(0, 5, (6,))), 6) for _ in range(3)]
    x = flat.params.repeat(3, 1) + 0.01 * torch.randn(3, flat.width, dtype=torch.float64)
    together = VectorizedOracle(flat)
    losses, g = together.gradients(x.clone(), batches, lambda c: 0)
    expected, gradients = LoopOracle(flat, step="autograd").gradients(x.clone(), batches, lambda c: 0)
    assert together.chains.layers
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(g, gradients, rtol=1e-10, atol=1e-13)


class Scaled(Dense):
    def training_step(self, batch, batch_idx):
        return 2 * super().training_step(batch, batch_idx)


class Smoothed(Dense):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1], label_smoothing=0.1)


class Summed(Dense):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="sum")


class Penalised(Dense):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.first.weight.square().sum()


class Straight(torch.autograd.Function):
    """A ReLU whose backward pass is the identity."""

    @staticmethod
    def forward(ctx, x):
        return x.relu()

    @staticmethod
    def backward(ctx, g):
        return g


class OwnBackward(Dense):
    def forward(self, x):
        return self.last(Straight.apply(self.first(x.flatten(1))))


class Tied(Dense):
    shape = (7,)

    def build(self):
        super().build()
        self.first = nn.Linear(7, 7)

    def forward(self, x):
        return self.last(self.first(self.first(x).relu()).relu())


class Skips(Tied):
    def forward(self, x):
        return self.last(self.first(x).relu() + x)


class Masks(Dense):
    def build(self):
        super().build()
        self.first.weight.register_hook(lambda g: g * (g > 0))


class Hears(Dense):
    def build(self):
        super().build()
        self.first.register_forward_hook(lambda *args: None)


class Normed(Dense):
    def build(self):
        super().build()
        self.norm = nn.BatchNorm1d(7)


OTHERS = [Scaled, Smoothed, Summed, Penalised, OwnBackward, Tied, Skips, Masks, Hears, Normed, users.Residual]


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_a_step_that_differs_from_a_chain_is_no_chain(kind):
    module = kind()
    assert Chains(module).of(module.batch(4)) is None


class OwnLoss(Classifier):
    def training_step(self, batch, batch_idx):
        return 2 * super().training_step(batch, batch_idx)


def test_shipped_networks_that_are_more_than_a_chain_are_none():
    frozen = shipped("lenet5")
    frozen.layers.conv1.weight.requires_grad_(False)
    assert Chains(frozen).of(batch((1, 28, 28))) is None
    own_loss = OwnLoss(Stack((1, 8, 8)).flatten().linear(3), 0.1)
    assert Chains(own_loss).of(batch((1, 8, 8), classes=3)) is None
    assert own_loss.cohort_losses is None
    for name, options in {"cnn_fedacs_mnist": {"dropout": 0.5}, "resnet18": {"width": 4}, "vgg9": {"width": 4}}.items():
        assert Chains(shipped(name, **options)).of(batch((3, 32, 32))) is None


class ByMode(Dense):
    """A module that is a chain in evaluation mode and for more than three samples."""

    def training_step(self, batch, batch_idx):
        factor = 2.0 if self.training or len(batch[0]) <= 3 else 1
        loss = super().training_step(batch, batch_idx)
        return loss if factor == 1 else loss * factor


def test_each_kind_of_batch_and_mode_is_checked():
    module = ByMode()
    chains = Chains(module)
    assert chains.of(module.batch(4)) is None
    module.eval()
    assert chains.of(module.batch(3)) is None
    assert chains.of(module.batch(4)) is not None


def test_targets_that_are_no_classes_are_left_to_autograd():
    flat = FlatModule(shipped("logistic"), torch.float64, CPU)
    x, y = torch.randn(6, 1, 28, 28, dtype=torch.float64), torch.randn(6, 10, dtype=torch.float64).softmax(1)
    oracle = LoopOracle(flat, chains=Chains(flat.module))
    losses, rows = oracle.gradients(flat.params[None].clone(), [Batch((x, y), 6)], lambda c: 0)
    expected = flat.module.training_step((x, y), 0)
    assert losses[0] == float(expected.detach())
    assert torch.equal(rows[0], flat.gradient(expected))


class BySize(users.Net):
    """A module with one list of weights, and another function between them for larger batches."""

    shape = (1, 4, 4)

    def build(self):
        self.first, self.last = nn.Conv2d(1, 2, 3), nn.Linear(8, users.CLASSES)

    def forward(self, x):
        h = self.first(x)
        return self.last((h.relu() if len(x) < 4 else h).flatten(1))


def test_chains_that_differ_by_the_size_of_the_batch_are_not_taken_for_one():
    module = BySize()
    flat = FlatModule(module, torch.float64, CPU)
    chains = Chains(module)
    ours, theirs = LoopOracle(flat, chains=chains), LoopOracle(flat, step="autograd")
    for size in (3, 5, 3, 5):
        content = Batch((torch.randn(size, 1, 4, 4, dtype=torch.float64), torch.randint(0, 5, (size,))), size)
        assert chains.of(content.content) is not None
        _, g = ours.gradients(flat.params[None], [content], lambda c: 0)
        _, expected = theirs.gradients(flat.params[None], [content], lambda c: 0)
        torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-13)


def test_a_dense_chain_one_client_at_a_time_is_a_recorded_step():
    module = Dense()
    flat = FlatModule(module, torch.float64, CPU)
    x, y = module.batch(6)
    oracles = LoopOracle(flat, chains=Chains(module)), LoopOracle(flat, step="autograd")
    ours, theirs = (o.gradients(flat.params[None], [Batch((x.double(), y), 6)], lambda c: 0)[1] for o in oracles)
    assert torch.equal(ours, theirs)
