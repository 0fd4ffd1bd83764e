"""The data of a recording: a list of calls of ATen operators on numbered tensors (values)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raylfl.replay.step_log import LogCall


@dataclass(frozen=True)
class Slot:
    """A reference to a value (tensor) of the recording, by its number."""

    number: int


class Geometry(NamedTuple):
    """The memory layout of a value (tensor) of the recording.

    base: the number of the value that first used this memory. offset: the position of the first entry in the memory.
    """

    base: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor, base: int) -> Geometry:
        return Geometry(base, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)

    def empty(self, device: str = "cpu") -> Tensor:
        """An uninitialised tensor with this layout, in memory of its own."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)

    @property
    def contiguous(self) -> bool:
        """Whether the entries are contiguous in memory, in the row-major order of their indices."""
        return self.empty("meta").is_contiguous()


READ_NONE = ("ones_like", "zeros_like", "full_like", "new_zeros", "new_ones", "new_full")  # read a tensor's shape only


@dataclass(frozen=True)
class Call:
    """A call of an operator, with a `Slot` in place of each tensor in its arguments and results."""

    op: Any  # torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @cached_property
    def slots(self) -> list[int]:
        """The numbers of the values in the arguments."""
        return numbers_in((self.args, self.kwargs))

    @cached_property
    def results(self) -> list[int]:
        """The numbers of the values in the result."""
        return numbers_in(self.result)

    @cached_property
    def written(self) -> list[int]:
        """The numbers of the values in the arguments that the call overwrites."""
        numbers: list[int] = []
        for name, position in _written_arguments(self.op):
            if name in self.kwargs:
                numbers += numbers_in(self.kwargs[name])
            elif position is not None and position < len(self.args):
                numbers += numbers_in(self.args[position])
        return numbers

    @cached_property
    def outs(self) -> list[str]:
        """The names of the arguments that receive results, such as `out`; their entries are not read."""
        return [argument.name for argument in self.op._schema.arguments if argument.is_out]

    @cached_property
    def views(self) -> bool:
        """Whether the result is a view of an argument, and the call leaves this argument unchanged."""
        infos = [r.alias_info for r in self.op._schema.returns]
        return bool(infos) and all(i is not None and not i.is_write for i in infos)

    @cached_property
    def draws(self) -> bool:
        """Whether the call may draw random numbers; assumed for all operators that users define."""
        return torch.Tag.nondeterministic_seeded in self.op.tags or self.op.namespace not in ("aten", "prims")

    @cached_property
    def factory(self) -> bool:
        """Whether the call makes a new tensor with the same entries in every step: zeros, ones, a range."""
        name = self.op._schema.name
        plain = name.startswith("aten::") and not name.startswith("aten::empty") and not self.op._schema.is_mutable
        return plain and not self.draws and (name.removeprefix("aten::") in READ_NONE or not self.slots)


@dataclass
class Recording:
    """The operator calls of one training step with its backward pass; tensors are numbered values.

    geometry: the memory layout of each value, by number. leaves: the number of tensors of the batch, which are the
    first values. constants: the tensors that are the same objects in every step, by number (parameters, buffers,
    tensors in attributes, tensors that the step makes of plain numbers). loss: the number of the loss. gradients: the
    number of the gradient of each parameter; None if the loss does not depend on it. logged: the calls of `self.log`,
    with a `Slot` in place of each tensor. modes: (part of the module, its training mode after the step) of each part
    whose mode the step sets.
    """

    calls: list[Call]
    geometry: dict[int, Geometry]
    leaves: int
    constants: dict[int, Tensor]
    loss: int
    gradients: list[int | None] = field(default_factory=list)
    logged: list[LogCall] = field(default_factory=list)
    modes: list[tuple[nn.Module, bool]] = field(default_factory=list)

    @property
    def returned(self) -> list[int]:
        """The numbers of the values that outlive the step: the loss and the logged values."""
        return [self.loss, *numbers_in([call.value for call in self.logged])]

    @property
    def results(self) -> set[int]:
        """The numbers of the values that the step computes: loss, logged values and gradients."""
        return {*self.returned, *(k for k in self.gradients if k is not None)}


@cache
def _written_arguments(op: Any) -> list[tuple[str, int | None]]:
    """(name, position) of each argument that an operator overwrites; the position of a keyword is None."""
    return [
        (argument.name, None if argument.kwarg_only else position)
        for position, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def numbers_in(value: Any) -> list[int]:
    """The numbers of all `Slot`s in nested lists, tuples and dicts, in order."""
    return [slot.number for slot in parts_of(Slot, value)]


def parts_of(kind: type[Any], value: Any) -> list[Any]:
    """All parts of this type in nested lists, tuples and dicts, in order."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [found for part in value for found in parts_of(kind, part)]


def map_parts(kind: type[Any], change: Callable[[Any], Any], value: Any) -> Any:
    """A copy of nested lists, tuples and dicts, with `change` applied to each part of this type, in order.

    Arguments of operators hold nothing else; torch's `tree_map_only` takes ten times as long.
    """
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {name: map_parts(kind, change, part) for name, part in value.items()}
    if not isinstance(value, (tuple, list)):
        return value
    parts, cls = [map_parts(kind, change, part) for part in value], type(value)
    return cls(*parts) if hasattr(cls, "_fields") else cls(parts)
