"""The function that makes a recorded call: another one with its bits, one that makes exactly this call, or itself."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from raylfl.replay.recorded import fastest as module
from raylfl.replay.recorded.calls import Call, Geometry, Slot
from raylfl.replay.recorded.fastest import draw_mask, fastest, new_mask, safe_softmax
from tests.core.test_recorded import check_bits
from tests.core.user_modules import CLASSES, Net

ATEN, TORCH = torch.ops.aten, torch._C._VariableFunctions
MATRIX = Geometry.of(torch.empty(3, 3), base=0)
MM = Call(ATEN.mm.default, (Slot(0), Slot(1)), {}, Slot(2))
SUM = Call(ATEN.sum.dim_IntList, (Slot(0), [0], True), {"dtype": torch.float64}, Slot(1))
sums, mm = ATEN.sum.dim_IntList, ATEN.mm.default


@pytest.mark.parametrize(
    ("call", "function"),
    [
        (MM, lambda a, b: mm(b, a)),
        (MM, lambda a, b: (mm(a, b), mm(a, b))),
        (MM, lambda a: a),
        (SUM, lambda x, dim, keepdim, dtype: sums(x, [0, 1], keepdim, dtype=dtype)),
        (SUM, lambda x, dim, keepdim, dtype: sums(x, dim, keepdim, dtype=torch.float32)),
        (SUM, lambda x, dim, keepdim, dtype: ATEN.mean.dim(x, dim, keepdim, dtype=dtype)),
    ],
)
def test_a_function_that_makes_another_call_is_not_used(monkeypatch, call, function):
    other = SimpleNamespace(**{call.op._schema.name.removeprefix("aten::"): function})
    monkeypatch.setattr(module, "_PLACES", (other,))
    assert fastest(call, dict.fromkeys(range(3), MATRIX)) is call.op._op


@pytest.mark.parametrize(("call", "function"), [(MM, TORCH.mm), (SUM, TORCH.sum)])
def test_an_operator_is_called_by_torchs_faster_function_if_that_makes_the_same_call(call, function):
    assert fastest(call, dict.fromkeys(range(3), MATRIX)) is function


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.9, 0.5, 0.123456789, 1e-12, 1.0])
def test_dropout_masks_are_torchs_own(p, dtype):
    x = torch.randn(7, 5, 33, dtype=dtype).transpose(0, 2)
    torch.manual_seed(3)
    expected, next_one = torch.empty_like(x).bernoulli_(p), torch.rand(1)
    torch.manual_seed(3)
    mask = new_mask(x, p)
    assert torch.equal(mask, expected)
    assert (mask.stride(), mask.dtype) == (expected.stride(), dtype)
    assert torch.equal(torch.rand(1), next_one)


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
    monkeypatch.setattr(module, "SMALLEST", 1)
    recorded, replayed = check_bits(Masked)
    assert recorded.refusal is None
    assert replayed
    program = next(kind.program for kind in recorded.kinds.values())
    used = program._function.__globals__.values()
    assert all(any(value is function for value in used) for function in (draw_mask, safe_softmax))


def test_functions_with_other_bits_than_torchs_are_left_out(monkeypatch):
    """A build of torch may draw otherwise; the step is then replayed without them."""
    monkeypatch.setattr(module, "SMALLEST", 1)
    monkeypatch.setitem(module.FASTER, ATEN.bernoulli_.float, lambda x, p: x.copy_(torch.rand_like(x) < p))
    recorded, replayed = check_bits(Masked)
    assert recorded.refusal is None
    assert replayed
