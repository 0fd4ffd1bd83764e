"""Fixed memory for the values of a recorded step: views are made once, and steps allocate almost nothing.

Each call of an operator that can write its result into a given tensor (`mm.out` for `mm`) writes it into memory that is
the same in every step. Views of such values are then the same tensors in every step, and their calls are dropped. Two
values share memory if the last use of one is before the first use of the other.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raylfl.replay.recorded.calls import Call, Geometry, Recording, Slot
from raylfl.replay.recorded.source import ALIGNMENT, WRITES_OUT

LARGEST = 2**25  # bytes; in larger steps the overhead of calls hardly counts, and this memory is never freed
COPIES = ("aten::clone", "aten::_to_copy")
ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros")
RESIZING = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")  # enlarge what they write to

_aten = torch.ops.aten


class Arena:
    """The memory of the fixed values of several steps, of which only one runs at a time.

    It grows to the size that the largest step needs. Tensors in it stay valid.
    """

    def __init__(self) -> None:
        self._storage = torch.UntypedStorage(0)

    def grow(self, size: int) -> None:
        """Makes the memory at least `size` bytes large."""
        if self._storage.nbytes() < size:
            self._storage.resize_(size)

    def tensor(self, geometry: Geometry, begin: int) -> Tensor:
        """The tensor with this layout in memory that begins at byte `begin`, a multiple of the size of an entry."""
        offset = begin // geometry.dtype.itemsize + geometry.offset
        with torch.inference_mode(False):  # an evaluation may be the first to need it, and a step overwrites it later
            return torch.empty(0, dtype=geometry.dtype).set_(self._storage, offset, geometry.shape, geometry.stride)


class _Block(NamedTuple):
    """Bytes begin to end of an arena, in use until call number `last`."""

    begin: int
    end: int
    last: int


class _Blocks:
    """The blocks of an arena that the values of a step use, and the number of bytes that they need together."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self.size = 0

    def take(self, size: int, first: int, last: int) -> int:
        """The first byte of a new block of `size` bytes, in use from call number `first` to call number `last`."""
        self._blocks = sorted(block for block in self._blocks if block.last >= first)
        begin = 0
        for block in self._blocks:
            if begin + size <= block.begin:
                break
            begin = block.end
        end = begin + -(-size // ALIGNMENT) * ALIGNMENT
        self._blocks.append(_Block(begin, end, last))
        self.size = max(self.size, end)
        return begin


def in_fixed_memory(plan: Recording, arena: Arena) -> Recording:
    """The plan with its values in fixed places of this arena, wherever a call can write there; for CPUs only.

    Loss and logged values are not in the arena, because they outlive the step. Matrix products that `Source` may write
    straight into the gradient's row are not in the arena either. A plan that needs more than LARGEST bytes is returned
    unchanged.
    """
    geometry, last = plan.geometry, _last_uses(plan)
    outlive = {geometry[k].base for k in plan.returned}
    rows, blocks = {k for k in plan.gradients if k is not None}, _Blocks()
    calls, fixed, begins = [], list[int](), dict[int, int]()
    for position, call in enumerate(plan.calls):
        results = _results(call)
        if call.views or call.op.name() == "aten::_unsafe_view":
            if results and all(geometry[k].base in begins for k in results):
                fixed += results
                continue
        elif results and all(geometry[k].base == k and k not in outlive for k in results):
            in_row = call.op.name() in WRITES_OUT and not rows.isdisjoint(results)
            writing = None if in_row else _writing(call, results)
            if writing is not None:
                begins |= {
                    k: blocks.take(geometry[k].empty("meta").untyped_storage().nbytes(), position, last[k])
                    for k in results
                }
                fixed += results
                calls += writing
                continue
        calls.append(call)
    if blocks.size > LARGEST:
        return plan
    arena.grow(blocks.size)
    tensors = {k: arena.tensor(geometry[k], begins[geometry[k].base]) for k in fixed}
    return replace(plan, calls=calls, constants=plan.constants | tensors)


def _last_uses(plan: Recording) -> dict[int, int]:
    """The number of the last call that uses each memory; the key is the number of the value that first used the memory.

    The memory of a gradient gets the number of calls in the plan, because gradients are needed after the last call.
    """
    last = {plan.geometry[k].base: n for n, call in enumerate(plan.calls) for k in (*call.slots, *call.results)}
    return last | {plan.geometry[k].base: len(plan.calls) for k in plan.gradients if k is not None}


def _results(call: Call) -> list[int]:
    """The numbers of a call's results; empty if a result is no tensor, or if the call overwrites an argument."""
    parts = call.result if isinstance(call.result, (list, tuple)) else [call.result]
    plain = all(isinstance(part, Slot) for part in parts) and not call.op._schema.is_mutable
    return [part.number for part in parts] if plain and call.op.namespace == "aten" else []


def _writing(call: Call, results: Sequence[int]) -> list[Call] | None:
    """The calls that write the results of `call` into given tensors; None if there is no such operator for a CPU.

    Also None for the losses in RESIZING: their operators enlarge the given tensor before they reduce to a mean, and so
    overwrite the memory behind it.
    """
    name = str(call.op._schema.name)
    if name in ZEROS:
        return [Call(_aten.zero_.default, (Slot(results[0]),), {}, Slot(results[0]))]
    if name in COPIES:
        return [Call(_aten.copy_.default, (Slot(results[0]), call.args[0]), {}, Slot(results[0]))]
    op = None if name.removeprefix("aten::") in RESIZING else _with_out(call.op)
    if op is None:
        return None
    writing = Call(op, call.args, call.kwargs, call.result)
    if len(writing.outs) != len(results):
        return None
    return [replace(writing, kwargs=call.kwargs | dict(zip(writing.outs, map(Slot, results), strict=True)))]


@cache
def _with_out(op: Any) -> Any:
    """The overload of an operator that writes into given tensors; None if no such overload has its own CPU kernel.

    An overload without its own kernel computes a new tensor and copies it.
    """
    packet, arguments = op.overloadpacket, [(a.name, str(a.type)) for a in op._schema.arguments]
    for overload in (getattr(packet, name) for name in packet.overloads()):
        plain = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
        if len(plain) < len(overload._schema.arguments) and plain == arguments:
            has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CPU")
            return overload if has_kernel else None
    return None
