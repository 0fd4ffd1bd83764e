"""Recorded calls that are merged, swapped or left out: the bits, random numbers and buffers of all calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from raylfl.replay.recorded.merged import Mask, same_draws
from tests.core.test_recorded import check_bits
from tests.core.user_modules import CLASSES, Net


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.9, 0.5, 0.123456789, 1e-12, 1.0])
def test_dropout_masks_are_torchs_own(p, dtype):
    x = torch.randn(7, 5, 33, dtype=dtype).transpose(0, 2)
    torch.manual_seed(3)
    expected, next_one = torch.empty_like(x).bernoulli_(p).div_(p), torch.rand(1)
    torch.manual_seed(3)
    ours = Mask(p, p)(x)
    assert same_draws(p, p, dtype)  # otherwise this compares torch with itself
    assert torch.equal(ours, expected)
    assert ours.stride() == expected.stride()
    assert ours.dtype == dtype
    assert torch.equal(torch.rand(1), next_one)


def test_checking_that_masks_are_equal_draws_nothing():
    same_draws.cache_clear()
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    same_draws(0.7, 0.7, torch.float32)
    assert torch.equal(torch.rand(4), expected)


class Masked(Net):
    """Attention with dropout in which the first sample of a batch is fully masked."""

    def build(self):
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x):
        nothing = torch.zeros(len(x), 6, dtype=torch.bool)
        nothing[0] = True
        return self.out(self.attention(x, x, x, key_padding_mask=nothing, need_weights=False)[0].sum(1))


def test_attention_with_everything_masked_is_replayed_with_autograds_bits(monkeypatch):
    monkeypatch.setattr("raylfl.replay.recorded.merged.SMALLEST", 1)
    recorded, replayed = check_bits(Masked)
    assert recorded.refusal is None
    assert replayed
    (program,) = [kind.program for kind in recorded.kinds.values()][:1]
    operators = [call.op._schema.name for call in program.calls]
    assert any("safe_softmax" in name for name in operators)
    assert any("dropout_mask" in name for name in operators)
    assert operators.count("raylfl::joined") == 1  # the gradients of query, key and value
    assert "aten::select_backward" not in operators


class Rewritten(Net):
    """Patterns that a rewrite changes, and such that differ from them in one part, by name."""

    name, shape = "", (3, 6, 6)

    def build(self):
        self.inner, self.out = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(54, CLASSES)
        self.watch = nn.BatchNorm2d(3)

    def forward(self, x):
        h = self.inner(x)
        if self.name.startswith("parts"):
            parts = h.flatten(2).view(len(x), 3, 72)
            a, b, c = (parts[:, k] for k in range(3))
            h = torch.addcmul(a, b, c) if self.name == "parts 3" else a * b
            return self.out(h[:, :54])
        gate = h.relu_() if self.name == "in place" else h.relu()
        small, places = F.max_pool2d(gate, 2, return_indices=True)
        if self.name == "indices":
            small = small + places * 0.01
        if self.name == "activation":
            small = small + gate.mean()
        if self.name == "view":
            small = small + gate.view(len(x), 6, 4, 9)[:, :, 0, :].view(len(x), 6, 3, 3)
        if self.name == "unused":
            self.watch(x)
            torch.rand(3)
            (x * 2).cos()
        return self.out(small.flatten(1))


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("swapped", "max_pool2d_with_indices relu_", "relu"),
        ("in place", "max_pool2d_with_indices relu_", ""),
        ("indices", "relu max_pool2d_with_indices", "relu_"),
        ("activation", "relu max_pool2d_with_indices", "relu_"),
        ("view", "relu max_pool2d_with_indices", "relu_"),
        ("unused", "native_batch_norm rand", "cos"),
        ("parts 3", "joined", "select_backward"),
        ("parts 2", "select_backward", "joined"),
    ],
)
def test_rewritten_calls_have_autograds_bits_and_calls_needed_elsewhere_stay(name, has, lacks):
    recorded, replayed = check_bits(type(name, (Rewritten,), {"name": name}), steps=12)
    assert recorded.refusal is None
    assert replayed
    program = next(iter(recorded.kinds.values())).program
    operators = [call.op._schema.name.split("::")[1] for call in program.calls]
    places = [operators.index(op) for op in has.split()]
    assert places == sorted(places)
    assert lacks not in operators
