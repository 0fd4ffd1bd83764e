"""The necessary operator calls of a recording, without aliases and constant calls.

An alias is a view with the memory and layout of an earlier value. A constant call has the same result tensor in every
step: a view of a constant, or new zeros, ones or the like.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from raylfl.replay.recorded.calls import Call, Recording, Slot, map_parts


def reduce_calls(recording: Recording) -> Recording:
    """The recording without aliases and constant calls."""
    geometry, constants = recording.geometry, dict(recording.constants)
    changing = {geometry[k].base for call in recording.calls for k in call.written} | recording.results
    same: dict[int, int] = {}
    seen = {geometry[k]: k for k in [*range(recording.leaves), *constants]}
    calls: list[Call] = []
    for call in recording.calls:
        call = _without_aliases(call, same)
        result = call.result.number if isinstance(call.result, Slot) else None
        if result is not None and not call.written:
            if geometry[result].base != result and geometry[result] in seen:
                same[result] = seen[geometry[result]]
                continue
            if call.views and constants.keys() >= set(call.slots):
                constants[result] = _carry_out(call, constants)
            elif call.factory and result not in changing:
                constants[result] = _carry_out(call, {k: geometry[k].empty() for k in call.slots})
            if result in constants:
                seen[geometry[result]] = result
                continue
        calls.append(call)
        seen |= {geometry[k]: k for k in call.results if geometry[k] not in seen}
    return replace(
        recording,
        calls=calls,
        constants=constants,
        loss=same.get(recording.loss, recording.loss),
        gradients=[None if k is None else same.get(k, k) for k in recording.gradients],
        logged=map_parts(Slot, lambda slot: Slot(same.get(slot.number, slot.number)), recording.logged),
    )


def _without_aliases(call: Call, same: Mapping[int, int]) -> Call:
    parts = call.args, call.kwargs, call.result
    return Call(call.op, *map_parts(Slot, lambda slot: Slot(same.get(slot.number, slot.number)), parts))


def _carry_out(call: Call, values: Mapping[int, Tensor]) -> Tensor:
    """The result of a call; values: number -> tensor of each argument."""
    args, kwargs = map_parts(Slot, lambda slot: values[slot.number], (call.args, call.kwargs))
    with torch.no_grad():
        result: Tensor = call.op(*args, **kwargs)
    return result
