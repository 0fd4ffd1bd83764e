"""BatchNorm on a single sample, which torch refuses, uses the running statistics; all else is unchanged."""

import copy

import pytest
import torch
from torch import nn

from raylfl.core.batchnorm import allow_single_samples


@pytest.fixture
def layers():
    torch.manual_seed(0)
    plain = nn.BatchNorm1d(3).double()
    plain(torch.randn(5, 3, dtype=torch.float64) * 2 + 1)  # their own running statistics
    ours = copy.deepcopy(plain)
    allow_single_samples(ours)
    return plain, ours


def test_a_single_sample_is_normalised_by_the_running_statistics_without_changing_them(layers):
    plain, ours = layers
    before = {name: b.clone() for name, b in ours.named_buffers()}
    x = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    y = ours(x)
    expected = (x - before["running_mean"]) / torch.sqrt(before["running_var"] + plain.eps)
    torch.testing.assert_close(y, expected * plain.weight + plain.bias)
    assert all(torch.equal(b, before[name]) for name, b in ours.named_buffers())
    assert ours.training
    y.sum().backward()  # parameters still learn from it
    assert ours.weight.grad is not None
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        plain(x)


@pytest.mark.parametrize("shape", [(2, 3), (7, 3), (1, 3, 4)])  # as of an image, with statistics of its own
def test_all_other_batches_are_left_to_torch(layers, shape):
    plain, ours = layers
    x = torch.randn(*shape, dtype=torch.float64)
    assert torch.equal(ours(x), plain(x))
    for (_, a), (_, b) in zip(ours.named_buffers(), plain.named_buffers(), strict=True):
        assert torch.equal(a, b)


def test_evaluation_and_frozen_layers_are_left_alone(layers):
    _, ours = layers
    ours.eval()
    ours(torch.randn(1, 3, dtype=torch.float64))
    assert not ours.training
    without = nn.BatchNorm1d(3, track_running_stats=False)
    allow_single_samples(without)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        without(torch.randn(1, 3))
