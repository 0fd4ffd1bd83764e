"""The data of a recording: a list of calls of ATen operators on numbered tensors (values)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from raylfl.replay.step_log import LogCall

T = TypeVar("T")


class Slot(NamedTuple):
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
    def of(tensor: Tensor, base: int, start: int = 0) -> Geometry:
        return Geometry(base, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()) - start, tensor.dtype)

    @property
    def contiguous(self) -> bool:
        """Whether the entries are contiguous in memory, in the row-major order of their indices."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


READ_NONE = ("ones_like", "zeros_like", "full_like", "new_zeros", "new_ones", "new_full")  # read a tensor's shape only


def full_name(op: Any) -> str:
    """The name of an operator with its overload, such as aten::mm or aten::sum.dim_IntList."""
    overload = op._schema.overload_name
    return f"{op._schema.name}.{overload}" if overload else str(op._schema.name)


@dataclass
class Call:
    """A call of an operator, with a `Slot` in place of each tensor in its arguments and results."""

    op: Any  # torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    def slots(self) -> list[int]:
        """The numbers of the values in the arguments."""
        return numbers_in((self.args, self.kwargs))

    def results(self) -> list[int]:
        """The numbers of the values in the result."""
        return numbers_in(self.result)

    def written(self) -> list[int]:
        """The numbers of the values in the arguments that the call overwrites."""
        numbers: list[int] = []
        for position, argument in enumerate(self.op._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            if argument.name in self.kwargs:
                numbers += numbers_in(self.kwargs[argument.name])
            elif not argument.kwarg_only and position < len(self.args):
                numbers += numbers_in(self.args[position])
        return numbers

    @property
    def outs(self) -> list[str]:
        """The names of the arguments that receive results, such as `out`; their entries are not read."""
        return [argument.name for argument in self.op._schema.arguments if argument.is_out]

    @property
    def views(self) -> bool:
        """Whether the result is a view of an argument, and the call leaves this argument unchanged."""
        infos = [r.alias_info for r in self.op._schema.returns]
        return bool(infos) and all(i is not None and not i.is_write for i in infos)

    @property
    def draws(self) -> bool:
        """Whether the call may draw random numbers; assumed for all operators that users define."""
        return torch.Tag.nondeterministic_seeded in self.op.tags or self.op.namespace not in ("aten", "prims", "raylfl")

    @property
    def factory(self) -> bool:
        """Whether the call makes a new tensor with the same entries in every step: zeros, ones, a range."""
        name = self.op._schema.name
        plain = name.startswith("aten::") and not name.startswith("aten::empty") and not self.op._schema.is_mutable
        return plain and not self.draws and (name.removeprefix("aten::") in READ_NONE or not self.slots())


@dataclass
class Recording:
    """The operator calls of one training step with its backward pass; tensors are numbered values.

    geometry: the memory layout of each value, by number. leaves: the number of tensors of the batch, which are the
    first values. inputs: parameters, buffers and tensors in attributes, by number. constants: tensors that the step
    makes from plain numbers, by number. loss: the number of the loss. gradients: the number of the gradient of each
    parameter; None if the loss does not depend on it. buffers: the numbers of the values that exist before the step and
    may be overwritten. logged: the calls of `self.log`, with a `Slot` in place of each tensor. modes: (part of the
    module, its training mode after the step) of each part whose mode the step sets.
    """

    calls: list[Call]
    geometry: dict[int, Geometry]
    leaves: int
    inputs: dict[int, Tensor]
    constants: dict[int, Tensor]
    loss: int
    gradients: list[int | None]
    buffers: set[int]
    logged: list[LogCall] = field(default_factory=list)
    modes: list[tuple[nn.Module, bool]] = field(default_factory=list)


def parts_of(value: Any, kind: type[T]) -> Iterator[T]:
    """All parts of type `kind` in nested lists, tuples and dicts."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parts_of(part, kind)


def numbers_in(value: Any) -> list[int]:
    """The numbers of all `Slot`s in nested lists, tuples and dicts."""
    return [slot.number for slot in parts_of(value, Slot)]


def map_parts(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """A copy of nested lists, tuples and dicts with `change` applied to all parts of type `kind`.

    Tuples become lists.
    """
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [map_parts(part, kind, change) for part in value]
    if isinstance(value, dict):
        return {name: map_parts(part, kind, change) for name, part in value.items()}
    return value
