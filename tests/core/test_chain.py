"""The chain's kernels against autograd, bit for bit; and the networks that it leaves alone."""

import pytest
import torch
from torch import nn

from raylfl.core.chain import Chain
from raylfl.core.flat import FlatModule, in_channels_last
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.models import MODELS
from raylfl.models.base import Classifier
from raylfl.models.stack import Stack

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


def build(name, **options):
    torch.manual_seed(0)
    return MODELS.get(name).cls(in_shape=SHAPES.get(name, (3, 32, 32)), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_loss_and_gradient_have_the_bits_of_autograd(name, channels_last, dtype):
    flat = FlatModule(build(name), dtype, CPU, channels_last)
    chain = Chain.of(flat.module)
    assert chain is not None
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for size in (1, 7, 20):
        x, y = torch.randn(size, *SHAPES[name], dtype=dtype), torch.randint(0, 10, (size,))
        if channels_last:
            x = in_channels_last(x)
        kept, row = x.clone(), torch.empty_like(flat.params)
        loss = chain.loss_and_gradient((x, y), flat.views(row))
        expected = flat.module.training_step((x, y), 0)
        assert torch.equal(loss, expected.detach())
        assert torch.equal(row, flat.gradient(expected))
        assert torch.equal(x, kept)
    torch.set_num_threads(before)


def test_a_relu_that_comes_first_leaves_the_batch_alone():
    module = nn.Module()
    module.cross_entropy_chain = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    x, y = torch.randn(5, 2, 2), torch.randint(0, 3, (5,))
    kept, gradients = x.clone(), [torch.empty_like(p) for p in module.parameters()]
    loss = Chain.of(module).loss_and_gradient((x, y), gradients)
    expected = nn.functional.cross_entropy(module.cross_entropy_chain(kept), y)
    assert torch.equal(x, kept)
    assert torch.equal(loss, expected)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, list(module.parameters())), strict=True):
        assert torch.equal(ours, theirs)


class OwnLoss(Classifier):
    def training_step(self, batch, batch_idx):
        return 2 * super().training_step(batch, batch_idx)


def test_what_is_no_plain_chain_is_left_to_autograd():
    frozen = build("lenet5")
    frozen.layers.conv1.weight.requires_grad_(False)
    hooked = build("lenet5")
    hooked.layers.relu1.register_forward_hook(lambda *args: None)
    own_loss = OwnLoss(Stack((1, 8, 8)).flatten().linear(3), 0.1)
    others = [build("cnn_fedacs_mnist", dropout=0.5), build("resnet18", width=4), build("vgg9", width=4)]
    for module in (frozen, hooked, own_loss, nn.Linear(2, 2), *others):
        assert Chain.of(module) is None
    assert own_loss.cohort_losses is None
    assert Chain.of(build("lenet5")) is not None


def test_targets_that_are_no_classes_are_left_to_autograd():
    flat = FlatModule(build("logistic"), torch.float64, CPU)
    x, y = torch.randn(6, 1, 28, 28, dtype=torch.float64), torch.randn(6, 10, dtype=torch.float64).softmax(1)
    losses, rows = LoopOracle(flat).gradients(flat.params[None].clone(), [Batch((x, y), 6)], lambda c: 0)
    expected = flat.module.training_step((x, y), 0)
    assert losses[0] == float(expected.detach())
    assert torch.equal(rows[0], flat.gradient(expected))
