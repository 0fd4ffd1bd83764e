"""The plan of a recording: its necessary operator calls, without aliases, constant calls and dead calls.

An alias is a view with the memory and layout of an earlier value. A constant call has the same result tensor in every
step. A dead call is one that no result of the step depends on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raylfl.replay.recorded.calls import Call, Geometry, Recording, Slot, map_parts, numbers_in


@dataclass
class Plan:
    """The necessary calls of a recording, and the results of its step as numbers of values.

    geometry: the memory layout of each value, by number. leaves: the number of tensors of the batch, which are the
    first values. constants: the tensors that are the same objects in every step, by number (parameters, buffers, their
    views, and tensors whose entries never change). gradients: one value per parameter; None if the loss does not depend
    on the parameter. logged: the logged values.
    """

    calls: list[Call]
    geometry: dict[int, Geometry]
    leaves: int
    constants: dict[int, Tensor]
    loss: int
    gradients: list[int | None]
    logged: list[int]

    @property
    def returned(self) -> set[int]:
        """The numbers of the values that the step returns: loss, gradients and logged values."""
        return {self.loss, *self.logged, *(k for k in self.gradients if k is not None)}


def reduce_calls(recording: Recording, cohort: bool = False) -> Plan:
    """The plan of a recording: its calls without aliases, constant calls and dead calls.

    cohort: whether each gradient has a row per client [C, *shape]. Each gradient is then copied into columns of a
    matrix [C, d], and these columns can be viewed in shapes [C, ...] only.
    """
    geometry, calls = recording.geometry, recording.calls
    written = {geometry[k].base for call in calls for k in call.written()}
    constants = {k: t.detach() for k, t in recording.inputs.items()} | recording.constants
    device = next((t.device for t in recording.inputs.values()), torch.device("cpu"))
    fixed = set(recording.constants)  # constants whose entries never change
    same: dict[int, int] = {}
    seen = {geometry[k]: k for k in [*range(recording.leaves), *constants]}
    needed_calls: list[Call] = []
    logged = numbers_in([call.value for call in recording.logged])
    returned = {recording.loss, *logged, *(k for k in recording.gradients if k is not None)}
    for call in calls:
        call = _without_aliases(call, same)
        result = call.result.number if isinstance(call.result, Slot) else None
        if result is not None and not call.written():
            if geometry[result].base != result and geometry[result] in seen:
                same[result] = seen[geometry[result]]
                continue
            made = _constant_result(call, constants, fixed, lambda k: empty(geometry[k], device))
            if made is not None and (call.views or (result not in written and result not in returned)):
                constants[result] = made
                seen[geometry[result]] = result
                if not set(call.slots()) - fixed or not call.views:
                    fixed.add(result)
                continue
        needed_calls.append(call)
        seen |= {geometry[k]: k for k in call.results() if geometry[k] not in seen}
    named = [None if k is None else _whole_memory(same.get(k, k), geometry, cohort) for k in recording.gradients]
    loss = same.get(recording.loss, recording.loss)
    plan = Plan(needed_calls, geometry, recording.leaves, constants, loss, named, [same.get(k, k) for k in logged])
    return replace(plan, calls=_alive(needed_calls, plan.returned, geometry, recording.buffers))


def empty(geometry: Geometry, device: torch.device) -> Tensor:
    """An uninitialised tensor with this memory layout."""
    return torch.empty_strided(geometry.shape, geometry.stride, dtype=geometry.dtype, device=device)


def _without_aliases(call: Call, same: dict[int, int]) -> Call:
    parts = [call.args, call.kwargs, call.result]
    args, kwargs, result = map_parts(parts, Slot, lambda slot: Slot(same.get(slot.number, slot.number)))
    return replace(call, args=tuple(args), kwargs=kwargs, result=result)


def _constant_result(
    call: Call, constants: dict[int, Tensor], fixed: set[int], like: Callable[[int], Tensor]
) -> Tensor | None:
    """The result of a call if it can be the same tensor in every step, else None.

    It can be the same for a view of a constant, for a new tensor of zeros, ones or the like, and for a result computed
    from constants whose entries never change (`fixed`). like: makes an uninitialised tensor with the layout of a value,
    from the number of the value.
    """
    arguments = call.slots()
    if call.views and arguments and all(k in constants for k in arguments):
        return _now(call, constants.__getitem__)
    if call.factory:
        return _now(call, like)
    plain = call.op.namespace == "aten" and not call.draws and not call.op._schema.is_mutable
    return _now(call, constants.__getitem__) if plain and arguments and fixed.issuperset(arguments) else None


def _whole_memory(k: int, geometry: dict[int, Geometry], cohort: bool) -> int:
    """The value that first used the memory of value k, if both have the same entries in the same order; else k.

    cohort: as in `reduce_calls`; the two values must then also have the same number of clients C (first dimension).
    """
    layout, base = geometry[k], geometry[geometry[k].base]
    same = layout.contiguous and base.contiguous and math.prod(layout.shape) == math.prod(base.shape)
    same = same and (not cohort or layout.shape[:1] == base.shape[:1])
    return layout.base if same and (layout.offset, layout.dtype) == (base.offset, base.dtype) else k


def _now(call: Call, value: Callable[[int], Tensor]) -> Tensor:
    args, kwargs = map_parts([call.args, call.kwargs], Slot, lambda slot: value(slot.number))
    with torch.no_grad():
        result = call.op(*args, **kwargs)
    assert isinstance(result, Tensor)
    return result


def _alive(calls: list[Call], needed: set[int], geometry: dict[int, Geometry], buffers: set[int]) -> list[Call]:
    """The calls on which the values `needed` depend, and the calls with side effects, in order.

    Side effects are overwriting a tensor, drawing random numbers, and using a module's buffer, which some kernels
    change although their schema does not say so. buffers: the numbers of the buffers.
    """
    needed, alive = set(needed), []
    bases = {geometry[k].base for k in buffers}
    for call in reversed(calls):
        results = call.results()
        acts = call.op._schema.is_mutable or call.draws or call.op.namespace != "aten" or not results
        acts = acts or (not call.views and any(geometry[k].base in bases for k in call.slots()))
        if acts or not needed.isdisjoint(results):
            alive.append(call)
            needed.update(call.slots())
    return alive[::-1]
