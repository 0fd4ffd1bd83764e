"""Turns the plan of a recorded step (plan.py) into Python source: one line per operator call.

Each value is freed after its last use.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Any

import torch

from raylfl.core.recorded.calls import Call, Slot, full_name
from raylfl.core.recorded.fastest import fastest
from raylfl.core.recorded.plan import Plan

WRITES_OUT = ("aten::mm", "aten::sum.dim_IntList", "aten::bmm")  # operators that can write into the gradient's row
ALIGNMENT = 64  # bytes, the alignment of torch's allocations; BLAS rounds differently for other alignments


class Source:
    """The generator of the Python source of a plan, the necessary operator calls of a recorded step.

    sizes, direct: as in `Program`.
    """

    def __init__(self, plan: Plan, sizes: Sequence[int], direct: Set[int] | None):
        self.plan, self.sizes, self.direct = plan, sizes, direct
        self.namespace: dict[str, Any] = {"torch": torch, "row": None}
        self.functions: dict[int, str] = {}

    def written(self, stamped: bool = False) -> tuple[str, dict[str, Any]]:
        """(source of a function `step`, its global names).

        stamped: whether the function calls `stamp()` before the first operator call and after each one.
        """
        plan, stamp = self.plan, ["    stamp()"] * stamped
        last = self._last_uses()
        lines = [f"def step(row, {', '.join(f't{k}' for k in range(plan.leaves))}):"]
        copied, direct = self._pieces(lines)
        lines += stamp
        for at, call in enumerate(plan.calls):
            lines.append(f"    {self._line(call, direct)}")
            lines += stamp
            gone = sorted(k for k in {*call.slots(), *call.results()} if last.get(k) == at and k not in plan.constants)
            if gone:
                lines.append(f"    del {', '.join(f't{k}' for k in gone)}")
        if copied:
            ours, theirs = ", ".join(f"g{i}" for i in copied), ", ".join(self._value(k) for k in copied.values())
            lines.append(f"    torch._foreach_copy_([{ours}], [{theirs}])")
        lines.append(f"    return {', '.join(map(self._value, [plan.loss, *plan.logged]))},")
        return "\n".join(lines) + "\n", self.namespace

    def _last_uses(self) -> dict[int, int]:
        """Value -> position of the last call that uses it, without loss, logged values and gradients."""
        last: dict[int, int] = {}
        for at, call in enumerate(self.plan.calls):
            last.update(dict.fromkeys((*call.slots(), *call.results()), at))
        for k in self.plan.wanted:
            last.pop(k, None)
        return last

    def _pieces(self, lines: list[str]) -> tuple[dict[int, int], dict[int, str]]:
        """Adds to `lines` the code that splits the gradient's row into pieces, one per parameter.

        Returns two dicts. The first maps the position of a parameter to the value that is copied into its piece at the
        end. The second maps a value that is computed directly into a piece to the name of the piece.
        """
        plan, geometry = self.plan, self.plan.geometry
        makers = {call.result.number: call for call in plan.calls if isinstance(call.result, Slot)}
        used: dict[int, int] = defaultdict(int)
        for k in plan.gradients:
            used[-1 if k is None else geometry[k].base] += 1
        written = {geometry[k].base for call in plan.calls for k in call.written()}
        copied, direct = {}, {}
        begin = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        if self.sizes:
            names = ", ".join(f"g{i}" for i in range(len(self.sizes)))
            lines.append(f"    {names}, = row.split_with_sizes({tuple(self.sizes)}, -1)")
        for i, k in enumerate(plan.gradients):
            if k is None:
                lines.append(f"    g{i}.zero_()")
                continue
            maker = makers.get(k)
            fresh = maker is not None and full_name(maker.op) in WRITES_OUT and geometry[k].base == k
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
        given = [self._text(a) for a in call.args] + [f"{name}={self._text(a)}" for name, a in call.kwargs.items()]
        single = call.result.number if isinstance(call.result, Slot) else None
        if single is not None and single in direct:
            given.append(f"out={direct[single]}")
            function = self._bound(_with_out(call), call.op._schema.name.split("::")[-1])
            return f"t{single} = {function}({', '.join(given)})"
        function = self._bound(fastest(call, self.plan.geometry), call.op._schema.name.split("::")[-1])
        text = f"{function}({', '.join(given)})"
        if call.written() and set(call.results()) <= set(call.slots()):
            return text  # in place: the result is an argument
        target = _target(call.result)
        return f"{target} = {text}" if target else text

    def _value(self, k: int) -> str:
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


def _with_out(call: Call) -> Any:
    return {"aten::mm": torch.mm, "aten::sum.dim_IntList": torch.sum, "aten::bmm": torch.bmm}[full_name(call.op)]
