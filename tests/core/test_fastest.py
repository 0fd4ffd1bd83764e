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
TO_NAN = Call(ATEN.mul.Scalar, (Slot(0), float("nan")), {}, Slot(1))


def function_of(call):
    return fastest(call, dict.fromkeys(range(3), MATRIX))


@pytest.mark.parametrize(("call", "function"), [(MM, TORCH.mm), (SUM, TORCH.sum)])
def test_an_operator_is_called_by_torchs_faster_function_if_that_makes_the_same_call(call, function):
    assert function_of(call) is function


def test_an_operator_without_such_a_function_is_called_itself():
    viewed = Call(ATEN._unsafe_view.default, (Slot(0), [9]), {}, Slot(1))
    assert function_of(viewed) is ATEN._unsafe_view.default._op


def replaced(monkeypatch, call, function):
    """The function chosen for a call if torch had only this function under the operator's name."""
    name = call.op._schema.name.removeprefix("aten::")
    monkeypatch.setattr("raylfl.replay.recorded.fastest._PLACES", (SimpleNamespace(**{name: function}),))
    return function_of(call)


def refuses(*args, **kwargs):
    raise TypeError("other arguments")


sums, times, mean = ATEN.sum.dim_IntList, ATEN.mul.Scalar, ATEN.mean.dim
OTHER = {
    "tensors in another order": (MM, lambda a, b: ATEN.mm.default(b, a)),
    "a tensor twice": (MM, lambda a, b: ATEN.mm.default(a, a)),
    "the call twice": (MM, lambda a, b: (ATEN.mm.default(a, b), ATEN.mm.default(a, b))),
    "no call": (MM, lambda a, b: a),
    "an error": (MM, refuses),
    "another number in a list": (SUM, lambda x, dim, keepdim, dtype: sums(x, [1], keepdim, dtype=dtype)),
    "a longer list": (SUM, lambda x, dim, keepdim, dtype: sums(x, [0, 1], keepdim, dtype=dtype)),
    "an argument less": (SUM, lambda x, dim, keepdim, dtype: sums(x, dim, dtype=dtype)),
    "another keyword argument": (SUM, lambda x, dim, keepdim, dtype: sums(x, dim, keepdim, dtype=torch.float32)),
    "a keyword argument less": (SUM, lambda x, dim, keepdim, dtype: sums(x, dim, keepdim)),
    "another operator": (SUM, lambda x, dim, keepdim, dtype: mean(x, dim, keepdim, dtype=dtype)),
    "a number of another type": (DOUBLE, lambda x, factor: times(x, float(factor))),
    "another number": (TO_NAN, lambda x, factor: times(x, 1.0)),
}


@pytest.mark.parametrize("what", OTHER)
def test_a_function_that_makes_another_call_is_not_used(monkeypatch, what):
    call, function = OTHER[what]
    assert replaced(monkeypatch, call, function) is call.op._op


@pytest.mark.parametrize("call", [MM, SUM, DOUBLE, TO_NAN])
def test_a_function_that_passes_everything_on_is_used(monkeypatch, call):
    def through(*args, **kwargs):
        return call.op(*args, **kwargs)

    assert replaced(monkeypatch, call, through) is through
