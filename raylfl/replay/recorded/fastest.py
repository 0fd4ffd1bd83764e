"""The choice of the function that makes a recorded operator call with the least overhead."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raylfl.replay.recorded.calls import Call, Geometry, Slot, map_parts
from raylfl.replay.recorded.plan import empty


class _Probe(TorchDispatchMode):
    """A torch dispatch mode that lists operator calls in `seen` without carrying them out; each returns `answer`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, answer: Any):
        super().__init__()  # type: ignore[no-untyped-call]
        self.answer, self.seen = answer, list[tuple[Any, Any, Any]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, args, kwargs or {}))
        return self.answer


def fastest(call: Call, geometry: dict[int, Geometry]) -> Any:
    """A function of torch's Python interface that makes exactly this operator call, or the operator if there is none.

    Such a function has less overhead than the operator. geometry: the memory layout of each value.
    """
    name = call.op._schema.name.removeprefix("aten::")
    if call.op.namespace != "aten":
        return getattr(call.op, "function", call.op)
    for namespace in _PLACES:
        function = getattr(namespace, name, None)
        if function is not None and _makes(function, call, geometry):
            return function
    return getattr(call.op, "_op", call.op)


_PLACES = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)


def _makes(function: Any, call: Call, geometry: dict[int, Geometry]) -> bool:
    """Whether the function, called with the arguments of `call`, makes exactly this call; tried on meta tensors."""

    @cache
    def stand_in(slot: Slot) -> Tensor:
        return empty(geometry[slot.number], torch.device("meta"))

    args, kwargs, answer = map_parts([call.args, call.kwargs, call.result], Slot, stand_in)
    probe = _Probe(answer)
    try:
        with torch._C._AutoDispatchBelowAutograd(), probe:
            function(*args, **kwargs)
    except (TypeError, RuntimeError, ValueError, NotImplementedError, AttributeError):
        return False
    if len(probe.seen) != 1 or probe.seen[0][0] is not call.op:
        return False
    _, seen, named = probe.seen[0]
    return _alike(list(seen), args) and _alike(dict(named), kwargs)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(value, b[name]) for name, value in a.items())
    return type(a) is type(b) and (a == b or a != a)
