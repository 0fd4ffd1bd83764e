"""Turns the plan of a recorded step (plan.py) into Python source: one line per operator call.

Each value is freed after its last use.
"""

import math
from collections import Counter
from collections.abc import Sequence, Set
from itertools import accumulate
from typing import Any

import torch

from raylfl.replay.recorded.calls import Call, Recording, Slot
from raylfl.replay.recorded.fastest import fastest

# functions that can write a gradient into its row (`out`), by operator
WRITES_OUT = {"aten::mm": torch.mm, "aten::sum.dim_IntList": torch.sum, "aten::bmm": torch.bmm}
ALIGNMENT = 64  # bytes, the alignment of torch's allocations; BLAS rounds differently for other alignments


class Source:
    """The generator of the Python source of a plan, the necessary operator calls of a recorded step.

    sizes, direct: as in `Program`. faster: as in `fastest`.
    """

    def __init__(self, plan: Recording, sizes: Sequence[int] = (), direct: Set[int] | None = None, faster: bool = True):
        self.plan, self.sizes, self.direct, self.faster = plan, sizes, direct, faster
        self.namespace: dict[str, Any] = {"torch": torch, "row": None}
        self.functions: dict[int, str] = {}

    def write(self) -> tuple[str, dict[str, Any]]:
        """(source of a function `step`, its global names)."""
        plan = self.plan
        last = {k: position for position, call in enumerate(plan.calls) for k in (*call.slots, *call.results)}
        held = plan.results | plan.constants.keys()
        lines = [f"def step(row, {', '.join(f't{k}' for k in range(plan.leaves))}):"]
        copied, direct = self._pieces(lines)
        for position, call in enumerate(plan.calls):
            lines.append(f"    {self._line(call, direct)}")
            gone = sorted(k for k in {*call.slots, *call.results} if last[k] == position and k not in held)
            if gone:
                lines.append(f"    del {', '.join(f't{k}' for k in gone)}")
        if copied:
            pieces, gradients = ", ".join(f"g{i}" for i in copied), ", ".join(self._value(k) for k in copied.values())
            lines.append(f"    torch._foreach_copy_([{pieces}], [{gradients}])")
        lines.append(f"    return {', '.join(map(self._value, plan.returned))},")
        return "\n".join(lines) + "\n", self.namespace

    def _pieces(self, lines: list[str]) -> tuple[dict[int, int], dict[int, str]]:
        """Adds to `lines` the code that splits the gradient's row into pieces g0, g1, ..., one per parameter.

        Returns two dicts. The first maps the position of a parameter to the value that is copied into its piece at the
        end. The second maps a value that is computed directly into a piece to the name of the piece.
        """
        plan, geometry = self.plan, self.plan.geometry
        makers = {call.result.number: call for call in plan.calls if isinstance(call.result, Slot)}
        used = Counter(geometry[k].base for k in plan.gradients if k is not None)
        written = {geometry[k].base for call in plan.calls for k in call.written}
        copied, direct = {}, {}
        begin = [0, *accumulate(self.sizes)]
        if self.sizes:
            names = ", ".join(f"g{i}" for i in range(len(self.sizes)))
            lines.append(f"    {names}, = row.split_with_sizes({tuple(self.sizes)}, -1)")
        for i, k in enumerate(plan.gradients):
            if k is None:
                lines.append(f"    g{i}.zero_()")
                continue
            maker = makers.get(k)
            fresh = maker is not None and maker.op.name() in WRITES_OUT and geometry[k].base == k
            aligned = begin[i] * geometry[k].dtype.itemsize % ALIGNMENT == 0
            fresh = fresh and (aligned if self.direct is None else i in self.direct)
            if geometry[k].shape != (self.sizes[i],):
                lines.append(f"    g{i} = g{i}.view({geometry[k].shape})")
            if fresh and geometry[k].contiguous and k not in written and used[k] == 1:
                direct[k] = f"g{i}"
            else:
                copied[i] = k
        return copied, direct

    def _line(self, call: Call, direct: dict[int, str]) -> str:
        """The source line of a call; its result is written to a piece of the gradient's row if `direct` has it."""
        arguments = [self._text(a) for a in call.args] + [f"{name}={self._text(a)}" for name, a in call.kwargs.items()]
        piece = direct.get(call.result.number) if isinstance(call.result, Slot) else None
        if piece is None:
            function = fastest(call, self.plan.geometry, self.faster)
        else:
            function = WRITES_OUT[call.op.name()]
            arguments.append(f"out={piece}")
        text = f"{self._bound(function, call.op._schema.name.split('::')[-1])}({', '.join(arguments)})"
        target = _target(call.result)
        in_place = call.written and set(call.results) <= set(call.slots)  # the result is an argument
        return f"{target} = {text}" if target and not in_place else text

    def _value(self, k: int) -> str:
        """The name of value k in the source; a constant is added to the global names."""
        if k in self.plan.constants:
            self.namespace[f"t{k}"] = self.plan.constants[k]
        return f"t{k}"

    def _text(self, value: Any) -> str:
        if isinstance(value, Slot):
            return self._value(value.number)
        if isinstance(value, (list, tuple)):
            parts = [self._text(part) for part in value]
            return f"({', '.join(parts)}{',' * bool(parts)})"
        if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        return self._bound(value)

    def _bound(self, thing: Any, label: str = "constant") -> str:
        """Adds a function or object to the source's global names and returns its name there.

        label: the name to use if it is free.
        """
        name = self.functions.get(id(thing))
        if name is None:
            name = label if label not in self.namespace else f"{label}_{len(self.functions)}"
            self.functions[id(thing)] = name
            self.namespace[name] = thing
        return name


def _target(result: Any) -> str:
    """The source of the assignment target for a call's result; empty for a call without results."""
    if isinstance(result, Slot):
        return f"t{result.number}"
    if isinstance(result, (list, tuple)):
        parts = [_target(part) or "_" for part in result]
        return f"({', '.join(parts)},)" if parts else ""
    return ""
