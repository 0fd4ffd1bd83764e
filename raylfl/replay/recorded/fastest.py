"""The choice of the function that makes a recorded operator call in the least time, with the same bits."""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raylfl.replay.recorded.calls import Call, Geometry, Slot, map_parts

DIGITS = 53  # a Bernoulli number of probability p compares the lower 53 of 64 random bits with p 2^53
SMALLEST = 2**13  # entries of a mask from which all bits are drawn at once

_aten = torch.ops.aten


class _Probe(TorchDispatchMode):
    """A torch dispatch mode that lists operator calls in `seen` without carrying them out; each returns `answer`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, answer: Any):
        super().__init__()  # type: ignore[no-untyped-call]
        self.answer, self.seen = answer, list[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, *_by_identity(args, kwargs or {})))
        return self.answer


def _by_identity(*parts: Any) -> Any:
    return map_parts(Tensor, id, parts)


def fastest(call: Call, geometry: dict[int, Geometry], faster: bool = True) -> Any:
    """The function for this operator call.

    It is a function of this module with the same results, one of torch's Python interface that makes exactly this call
    and has less overhead than the operator, or the operator itself. geometry: the memory layout of each value. faster:
    whether to use functions of this module, whose bits the caller must compare.
    """
    if faster and call.op in FASTER and not call.kwargs:
        layout = geometry[call.args[0].number]
        large = math.prod(layout.shape) >= SMALLEST and layout.dtype in (torch.float32, torch.float64)
        if large or not call.draws:
            return FASTER[call.op]
    name = call.op._schema.name.removeprefix("aten::")
    for namespace in _PLACES if call.op.namespace == "aten" else ():
        function = getattr(namespace, name, None)
        if function is not None and _makes(function, call, geometry):
            return function
    return getattr(call.op, "_op", call.op)


_PLACES = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)


def _makes(function: Any, call: Call, geometry: dict[int, Geometry]) -> bool:
    """Whether the function, called with the arguments of `call`, makes exactly this call; tried on meta tensors."""

    stand_in = cache(lambda slot: geometry[slot.number].empty("meta"))
    args, kwargs, answer = map_parts(Slot, stand_in, (call.args, call.kwargs, call.result))
    probe = _Probe(answer)
    try:
        with torch._C._AutoDispatchBelowAutograd(), probe:
            function(*args, **kwargs)
    except (TypeError, RuntimeError, ValueError, NotImplementedError, AttributeError):
        return False
    return probe.seen == [(call.op, *_by_identity(args, kwargs))]


def draw_mask(x: Tensor, p: float = 0.5) -> Tensor:
    """Sets the entries of x to Bernoulli numbers of probability p, as `x.bernoulli_(p)` does, in 0.7 of the time.

    torch draws the 64 random bits of a number and compares them before it draws the next ones. This function draws all
    bits first.
    """
    bits = torch.empty_like(x, dtype=torch.int64).random_().bitwise_and_(2**DIGITS - 1)
    return torch.lt(bits, math.ceil(p * 2**DIGITS), out=x)


def new_mask(x: Tensor, p: float) -> Tensor:
    """Bernoulli numbers of probability p in the shape of x."""
    return draw_mask(torch.empty_like(x), p)


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """torch's safe softmax along `dim`, in which rows of -inf (from an attention mask) become 0 instead of nan.

    torch searches for such rows first, at three times the cost of the softmax. Here a nan in the result shows that
    there are some.
    """
    plain = torch.softmax(x, dim, dtype)
    return _aten._safe_softmax(x, dim, dtype) if plain.sum().isnan() else plain


FASTER = {
    _aten.bernoulli_.float: draw_mask,
    _aten.bernoulli.p: new_mask,
    _aten._safe_softmax.default: safe_softmax,
}
