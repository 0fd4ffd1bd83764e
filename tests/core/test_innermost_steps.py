"""Modules whose steps are translated to samples innermost, and modules whose steps are not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.core.reference import loss_of
from raylfl.models import MODELS
from raylfl.models.base import Classifier
from raylfl.models.stack import Stack
from raylfl.replay.innermost.steps import InnermostSteps
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
def test_steps_of_shipped_networks_are_translated(name):
    module = shipped(name)
    steps = InnermostSteps(module)
    found = steps.of(batch(SHAPES[name]))
    convolutions = [layer for layer in module.layers if isinstance(layer, nn.Conv2d)]
    assert [c.channels for c in found.convolutions] == [layer.in_channels for layer in convolutions]
    assert steps.network is module.layers


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


class Dense(users.Net):
    shape = (4, 4)

    def build(self):
        self.last, self.first = nn.Linear(7, users.CLASSES), nn.Linear(16, 7)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)).relu())


def with_loss(loss):
    """A class of networks with another loss: a function of the network, its scores and the labels."""

    class Network(Dense):
        def training_step(self, batch, batch_idx):
            return loss(self, self(batch[0]), batch[1])

    return Network


LastDimension = with_loss(lambda net, scores, y: F.nll_loss(F.log_softmax(scores, -1), y))  # in two calls
OTHER_LOSSES = {
    "scaled": lambda net, scores, y: 2 * F.cross_entropy(scores, y),
    "smoothed": lambda net, scores, y: F.cross_entropy(scores, y, label_smoothing=0.1),
    "softmax over samples": lambda net, scores, y: F.nll_loss(F.log_softmax(scores, 0), y),
    "summed": lambda net, scores, y: F.cross_entropy(scores, y, reduction="sum"),
    "penalised": lambda net, scores, y: F.cross_entropy(scores, y) + net.first.weight.square().sum(),
}


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


class Smooth(Dense):
    def forward(self, x):
        h = torch.tanh(self.first(x.flatten(1)))
        return self.last(F.gelu(h) - F.silu(h) * torch.sigmoid(-h) + h)


class Numbered(Dense):
    """A function with a number, which may be another one in the next step."""

    def forward(self, x):
        return self.last(0.5 * self.first(x.flatten(1)))


class Shared(users.Net):
    """A convolution whose result is used by a ReLU on a view of it and by another function."""

    shape = (1, 4, 4)

    def build(self):
        self.first, self.last = nn.Conv2d(1, 2, 3), nn.Linear(8, users.CLASSES)

    def forward(self, x):
        h = self.first(x)
        return self.last(h.flatten(1).relu() + h.tanh().flatten(1))


class InPlace(Shared):
    def forward(self, x):
        return self.last(F.relu(self.first(x), inplace=True).flatten(1))


class InPlaceAfterView(Shared):
    """A ReLU in place on a value of which a view has been used for the last time."""

    def forward(self, x):
        h = self.first(x)
        bent = h.flatten(2).tanh().flatten(1)
        return self.last(F.relu(h, inplace=True).flatten(1) + bent)


@pytest.mark.parametrize("kind", [LeNet, LastDimension, OwnBackward, Skips, Smooth, Shared, InPlace, InPlaceAfterView])
def test_a_users_step_is_translated_and_its_gradient_is_in_the_modules_order(kind):
    module = kind()
    flat = FlatModule(module, torch.float64, CPU)
    x, y = module.batch(6)
    content = x.double(), y
    cohort = kind not in (LeNet, LastDimension) and not hasattr(module.first, "kernel_size")
    step = InnermostSteps(module, cohort).of(content)
    loss = loss_of(module.training_step(content, 0), module)
    expected, row = flat.backward(loss), torch.full_like(flat.params, torch.nan)
    if cohort:
        content, views = (content[0][None], y[None]), flat.views(row[None])
        ours = step.gradients(content, flat.views(flat.params[None]), views)[0]
    else:
        ours = step.gradients(content, flat.parameters, flat.views(row))
    torch.testing.assert_close(ours, loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(row, expected, rtol=1e-10, atol=1e-13)


class Overwritten(Shared):
    """A ReLU in place on a view of a value that is used afterwards."""

    def forward(self, x):
        h = self.first(x)
        F.relu(h.flatten(1), inplace=True)
        return self.last(h.tanh().flatten(1))


class OverwrittenDetached(Shared):
    """A ReLU in place on a value whose detached view is used afterwards."""

    def forward(self, x):
        h = self.first(x)
        detached = h.detach().flatten(1)
        return self.last(F.relu(h, inplace=True).flatten(1) + detached)


class Halves(Shared):
    """A linear layer on rows that are no samples."""

    def build(self):
        self.last = nn.Linear(8, users.CLASSES)

    def forward(self, x):
        return self.last(x.view(-1, 8))[: len(x)]


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


OTHERS = [
    Numbered,
    Overwritten,
    OverwrittenDetached,
    Halves,
    Tied,
    Masks,
    Hears,
    Normed,
    users.Residual,
]


@pytest.mark.parametrize("kind", [*OTHERS, *map(with_loss, OTHER_LOSSES.values())])
def test_a_step_that_is_more_than_a_cross_entropy_of_plain_layers_has_no_translation(kind):
    module = kind()
    assert InnermostSteps(module).of(module.batch(4)) is None


class OwnLoss(Classifier):
    def training_step(self, batch, batch_idx):
        return 2 * super().training_step(batch, batch_idx)


def test_shipped_networks_with_other_layers_have_no_translation():
    frozen = shipped("lenet5")
    frozen.layers.conv1.weight.requires_grad_(False)
    assert InnermostSteps(frozen).of(batch((1, 28, 28))) is None
    own_loss = OwnLoss(Stack((1, 8, 8)).flatten().linear(3), 0.1)
    assert InnermostSteps(own_loss).of(batch((1, 8, 8), classes=3)) is None
    assert own_loss.cohort_losses is None
    for name, options in {"cnn_fedacs_mnist": {"dropout": 0.5}, "resnet18": {"width": 4}, "vgg9": {"width": 4}}.items():
        assert InnermostSteps(shipped(name, **options)).of(batch((3, 32, 32))) is None


class ByMode(Dense):
    """A module whose loss is a plain cross-entropy in evaluation mode, for more than three samples."""

    def training_step(self, batch, batch_idx):
        factor = 2.0 if self.training or len(batch[0]) <= 3 else 1
        loss = super().training_step(batch, batch_idx)
        return loss if factor == 1 else loss * factor


def test_each_kind_of_batch_and_mode_is_checked():
    module = ByMode()
    steps = InnermostSteps(module)
    assert steps.of(module.batch(4)) is None
    module.eval()
    assert steps.of(module.batch(3)) is None
    assert steps.of(module.batch(4)) is not None


def test_targets_that_are_no_classes_are_left_to_autograd():
    flat = FlatModule(shipped("logistic"), torch.float64, CPU)
    x, y = torch.randn(6, 1, 28, 28, dtype=torch.float64), torch.randn(6, 10, dtype=torch.float64).softmax(1)
    oracle = LoopOracle(flat, innermost=InnermostSteps(flat.module))
    losses, rows = oracle.gradients(flat.params[None].clone(), [Batch((x, y), 6)], lambda c: 0)
    expected = flat.module.training_step((x, y), 0)
    assert losses[0] == float(expected.detach())
    assert torch.equal(rows[0], flat.backward(expected))


class BySize(users.Net):
    """A module with one list of weights, and another function between them for larger batches."""

    shape = (1, 4, 4)

    def build(self):
        self.first, self.last = nn.Conv2d(1, 2, 3), nn.Linear(8, users.CLASSES)

    def forward(self, x):
        h = self.first(x)
        return self.last((h.relu() if len(x) < 4 else h).flatten(1))


def test_steps_that_differ_by_the_size_of_the_batch_are_not_taken_for_one():
    module = BySize()
    flat = FlatModule(module, torch.float64, CPU)
    steps = InnermostSteps(module)
    ours, theirs = LoopOracle(flat, innermost=steps), LoopOracle(flat, step="autograd")
    for size in (3, 5, 3, 5):
        content = Batch((torch.randn(size, 1, 4, 4, dtype=torch.float64), torch.randint(0, 5, (size,))), size)
        assert steps.of(content.content) is not None
        _, g = ours.gradients(flat.params[None], [content], lambda c: 0)
        _, expected = theirs.gradients(flat.params[None], [content], lambda c: 0)
        torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-13)
