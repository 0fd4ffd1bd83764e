"""Random numbers that a step draws twice: gradient checkpointing restores the generator and repeats a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from raylfl.core.recorded.calls import Call, Geometry, Slot, mapped

_aten = torch.ops.aten


class Draws:
    """The calls of a recording that draw random numbers on the CPU; a repeated draw becomes a copy of the first one.

    calls, geometry: of the recording, as in `Recording`. number: gives a new value a number.
    """

    def __init__(self, calls: list[Call], geometry: Mapping[int, Geometry], number: Callable[[Tensor], int]):
        self.calls, self.geometry, self.number = calls, geometry, number
        self._first: dict[Any, Call] = {}  # the first call that drew these numbers, by its key
        self._copies: dict[Any, Slot] = {}  # its numbers, copied for a later call that draws the same ones

    def key(self, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A key that is equal for calls that draw the same random numbers; None if the numbers depend on a tensor.

        It contains the state of the CPU's generator, which gradient checkpointing restores before it repeats a forward
        pass. Draws on another device have no key.
        """
        call = Call(func, tuple(args), kwargs, None)
        reads = not func._schema.name.endswith("_like") and not set(call.slots()) <= set(call.written())
        if reads or torch.device(kwargs.get("device") or "cpu").type != "cpu":
            return None
        with torch._C.DisableTorchFunction():  # `Watch` would refuse the look at the state
            state = torch.get_rng_state().numpy().tobytes()
        filled = mapped([args, kwargs], Slot, lambda slot: self.geometry[slot.number]._replace(base=0, offset=0))
        return func, repr(filled), state

    def once(self, draw: Any, call: Call, result: Tensor) -> Call:
        """The call to record for `call`, which draws random numbers: `call` itself, or a copy of numbers drawn before.

        A copy is returned if an earlier call has drawn the same numbers. draw: the key of the call (`key`).
        """
        first = self._first.setdefault(draw, call)
        if first is call:
            return call
        if draw not in self._copies:  # a copy, because dropout changes the numbers in place
            self._copies[draw] = Slot(self.number(torch.empty_like(result)))
            at = next(k for k, earlier in enumerate(self.calls) if earlier is first)
            self.calls.insert(at + 1, Call(_aten.clone.default, (first.result,), {}, self._copies[draw]))
        if call.written():
            return Call(_aten.copy_.default, (call.result, self._copies[draw]), {}, call.result)
        return Call(_aten.clone.default, (self._copies[draw],), {}, call.result)
