"""The data of a recording: a list of calls of ATen operators on numbered tensors (values)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

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
        return torch.Tag.nondeterministic_seeded in self.op.tags or self.op.namespace not in ("aten", "prims")

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


def numbers_in(value: Any) -> list[int]:
    """The numbers of all `Slot`s in nested lists, tuples and dicts."""
    return [slot.number for slot in tree_leaves(value) if isinstance(slot, Slot)]
