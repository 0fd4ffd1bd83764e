"""The function that makes a recorded call makes exactly this call, or it is the operator itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from raylfl.replay.recorded.calls import Call, Geometry, Slot
from raylfl.replay.recorded.fastest import fastest

ATEN, TORCH = torch.ops.aten, torch._C._VariableFunctions
MATRIX = Geometry.of(torch.empty(3, 3), base=0)
MM = Call(ATEN.mm.default, (Slot(0), Slot(1)), {}, Slot(2))
SUM = Call(ATEN.sum.dim_IntList, (Slot(0), [0], True), {"dtype": torch.float64}, Slot(1))
DOUBLE = Call(ATEN.mul.Scalar, (Slot(0), 2), {}, Slot(1))
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
        (DOUBLE, lambda x, factor: ATEN.mul.Scalar(x, float(factor))),
    ],
)
def test_a_function_that_makes_another_call_is_not_used(monkeypatch, call, function):
    other = SimpleNamespace(**{call.op._schema.name.removeprefix("aten::"): function})
    monkeypatch.setattr("raylfl.replay.recorded.fastest._PLACES", (other,))
    assert fastest(call, dict.fromkeys(range(3), MATRIX)) is call.op._op


@pytest.mark.parametrize(("call", "function"), [(MM, TORCH.mm), (SUM, TORCH.sum)])
def test_an_operator_is_called_by_torchs_faster_function_if_that_makes_the_same_call(call, function):
    assert fastest(call, dict.fromkeys(range(3), MATRIX)) is function
