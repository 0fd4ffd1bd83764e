"""Compilation of a recording to straight Python: only the necessary calls, each value freed after its last use."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raylfl.core.recorded.calls import Call, Geometry, Recording, Slot, mapped, slots_in
from raylfl.core.recorded.merged import merged
from raylfl.core.recorded.pools import pools_first
from raylfl.core.recorded.products import straightened
from raylfl.core.step_log import LogCall

WRITES_OUT = ("aten::mm", "aten::sum.dim_IntList", "aten::bmm")  # they can write into the gradient's row
ALIGNMENT = 64  # bytes, the alignment of torch's allocations; BLAS rounds differently for other alignments
FACTORIES = ("ones_like", "zeros_like", "full_like", "ones", "zeros", "full", "scalar_tensor", "arange", "new_zeros")


def full_name(op: Any) -> str:
    """The full name of an operator, such as aten::mm or aten::sum.dim_IntList."""
    overload = op._schema.overload_name
    return f"{op._schema.name}.{overload}" if overload else str(op._schema.name)


class Program:
    """A compiled step, which is called with a batch's tensors and the row [d] for the gradient, or rows [C, d].

    listing: its source text; draws: whether it draws random numbers from torch's generators.
    """

    def __init__(self, recording: Recording, sizes: Sequence[int], bold: Set[int] | None = None):
        """Compiles a recording; sizes: entries of each parameter, in the order of the gradients.

        bold: for rows [C, d], the numbers of the gradients that are written straight into them, in any order and
        alignment, which mostly keeps their bits.
        """
        self.recording, self.sizes, self.bold = recording, sizes, bold
        plan = reduced(recording)
        if bold:
            chosen = [k for i, k in enumerate(plan.gradients) if i in bold]
            calls, geometry = straightened(plan.calls, plan.geometry, chosen, plan.wanted)
            plan = replace(plan, calls=calls, geometry=geometry)
        if next(iter(recording.inputs.values())).device.type == "cpu":
            calls, geometry = pools_first(plan.calls, plan.geometry, plan.wanted)
            plan = replace(plan, calls=merged(calls, geometry), geometry=geometry)
        self.plan, self.calls, self.draws = plan, plan.calls, any(call.draws for call in plan.calls)
        self.listing, self._function = _made(*_Source(plan, sizes, bold).written())
        self.logs = bool(recording.logged)

    def __call__(self, leaves: Sequence[Tensor], row: Tensor) -> tuple[Tensor, ...]:
        """(loss, logged values...); writes the gradient into the row. Buffers change as in the step itself."""
        with torch._C._AutoDispatchBelowAutograd():
            return self._function(row, *leaves)

    def logged(self, values: Sequence[Tensor]) -> list[LogCall]:
        """The calls of `self.log` with these values, which a call of the program returned after the loss."""
        given = iter(values)
        return [
            call._replace(value=next(given)) if isinstance(call.value, Slot) else call for call in self.recording.logged
        ]

    def seconds(self, leaves: Sequence[Tensor], row: Tensor, times: int) -> list[float]:
        """The shortest time of each call over several steps, in seconds; buffers and generators change as in a step."""
        stamps: list[float] = []
        listing, namespace = _Source(self.plan, self.sizes, self.bold).written(stamped=True)
        namespace["stamp"] = lambda: stamps.append(time.perf_counter())
        _, function = _made(listing, namespace)
        found: list[list[float]] = []
        for _ in range(times):
            stamps.clear()
            with torch._C._AutoDispatchBelowAutograd():
                function(row, *leaves)
            found.append([after - before for before, after in pairwise(stamps)])
        return [min(column) for column in zip(*found, strict=True)]

    def table(self) -> list[dict[str, str]]:
        """The calls as rows for a table: operator, arguments and shape of the result."""
        names, geometry = self.recording.names, self.plan.geometry

        def shown(value: Any) -> str:
            if isinstance(value, Slot):
                return names.get(value.number, f"%{value.number}")
            if isinstance(value, (list, tuple)):
                return f"[{', '.join(map(shown, value))}]"
            return str(value)

        rows = []
        for call in self.calls:
            shapes = ["x".join(map(str, geometry[k].shape)) or "1" for k in call.results()]
            given = [shown(a) for a in call.args] + [f"{name}={shown(a)}" for name, a in call.kwargs.items()]
            results = ", ".join(f"%{k}" for k in call.results())
            rows.append({"result": results, "operator": full_name(call.op).removeprefix("aten::")})
            rows[-1] |= {"of": ", ".join(given), "shape": ", ".join(shapes)}
        return rows


def _made(listing: str, namespace: dict[str, Any]) -> tuple[str, Callable[..., tuple[Tensor, ...]]]:
    """The source, and its function."""
    exec(compile(listing, "<recorded step>", "exec"), namespace)  # generated here, from no outside text
    return listing, namespace["step"]


@dataclass
class Plan:
    """The necessary calls of a recording; constants: values that are the same in every step."""

    calls: list[Call]
    geometry: dict[int, Geometry]
    leaves: int
    constants: dict[int, Tensor]
    loss: int
    gradients: list[int | None]
    logged: list[int]

    @property
    def wanted(self) -> set[int]:
        """The numbers of the returned values."""
        return {self.loss, *self.logged, *(k for k in self.gradients if k is not None)}


def reduced(recording: Recording) -> Plan:
    """The plan of a recording: without aliases, constant calls and dead calls."""
    geometry, calls = recording.geometry, recording.calls
    written = {geometry[k].home for call in calls for k in call.written()}
    constants = {k: t.detach() for k, t in recording.inputs.items()} | recording.constants
    device = next(iter(recording.inputs.values())).device
    fixed = set(recording.constants)  # constants whose entries never change
    same: dict[int, int] = {}
    seen = {geometry[k]: k for k in [*range(recording.leaves), *constants]}
    kept: list[Call] = []
    logged = [s.number for s in slots_in([call.value for call in recording.logged])]
    wanted = {recording.loss, *logged, *(k for k in recording.gradients if k is not None)}
    for call in calls:
        call = _renamed(call, same)
        result = call.result.number if isinstance(call.result, Slot) else None
        if result is not None and not call.written():
            if geometry[result].home != result and geometry[result] in seen:
                same[result] = seen[geometry[result]]
                continue
            made = _known(call, constants, fixed, lambda k: _empty(geometry[k], device))
            if made is not None and (call.views or (result not in written and result not in wanted)):
                constants[result] = made
                seen[geometry[result]] = result
                if not set(call.slots()) - fixed or not call.views:
                    fixed.add(result)
                continue
        kept.append(call)
        seen |= {geometry[k]: k for k in call.results() if geometry[k] not in seen}
    named = [None if k is None else _whole(same.get(k, k), geometry) for k in recording.gradients]
    loss = same.get(recording.loss, recording.loss)
    plan = Plan(kept, geometry, recording.leaves, constants, loss, named, [same.get(k, k) for k in logged])
    return replace(plan, calls=_alive(kept, plan.wanted, geometry, recording.buffers))


def _empty(geometry: Geometry, device: torch.device) -> Tensor:
    """An uninitialised tensor with this geometry."""
    return torch.empty_strided(geometry.shape, geometry.stride, dtype=geometry.dtype, device=device)


def _renamed(call: Call, same: dict[int, int]) -> Call:
    def rename(slot: Slot) -> Slot:
        return Slot(same.get(slot.number, slot.number))

    args, kwargs, result = (mapped(part, Slot, rename) for part in (list(call.args), call.kwargs, call.result))
    return replace(call, args=tuple(args), kwargs=kwargs, result=result)


def _known(call: Call, constants: dict[int, Tensor], fixed: set[int], like: Callable[[int], Tensor]) -> Tensor | None:
    """The result of a call that is the same in every step, else None.

    It is a view of a constant, a newly made tensor, or computed from fixed constants.
    """
    given, name = call.slots(), call.op._schema.name.removeprefix("aten::")
    if call.views and given and all(k in constants for k in given):
        return _now(call, constants.__getitem__)
    if name in FACTORIES:
        return _now(call, like)
    plain = call.op.namespace == "aten" and not call.draws and not call.op._schema.is_mutable
    return _now(call, constants.__getitem__) if plain and given and fixed.issuperset(given) else None


def _whole(k: int, geometry: dict[int, Geometry]) -> int:
    """The value that first had this memory if both have the same entries in the same order, else k."""
    ours, home = geometry[k], geometry[geometry[k].home]
    same = ours.contiguous and home.contiguous and math.prod(ours.shape) == math.prod(home.shape)
    return ours.home if same and (ours.offset, ours.dtype) == (home.offset, home.dtype) else k


def _now(call: Call, value: Callable[[int], Tensor]) -> Tensor:
    args, kwargs = (mapped(part, Slot, lambda s: value(s.number)) for part in (list(call.args), call.kwargs))
    with torch.no_grad():
        result = call.op(*args, **kwargs)
    assert isinstance(result, Tensor)
    return result


def _alive(calls: list[Call], needed: set[int], geometry: dict[int, Geometry], buffers: set[int]) -> list[Call]:
    """The calls that needed values depend on, and the calls with effects.

    Effects are overwriting, drawing, and using a module's buffer, which some kernels change although their schema does
    not say so.
    """
    needed, kept = set(needed), []
    homes = {geometry[k].home for k in buffers}
    for call in reversed(calls):
        results = call.results()
        acts = call.op._schema.is_mutable or call.draws or call.op.namespace != "aten" or not results
        acts = acts or (not call.views and any(geometry[k].home in homes for k in call.slots()))
        if acts or not needed.isdisjoint(results):
            kept.append(call)
            needed.update(call.slots())
    return kept[::-1]


class _Source:
    """The generator of a plan's Python source."""

    def __init__(self, plan: Plan, sizes: Sequence[int], bold: Set[int] | None):
        self.plan, self.sizes, self.bold = plan, sizes, bold
        self.namespace: dict[str, Any] = {"torch": torch, "row": None}
        self.functions: dict[int, str] = {}

    def written(self, stamped: bool = False) -> tuple[str, dict[str, Any]]:
        """The source and the names it uses; stamped: with `stamp()` before the first call and after each."""
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
        """The position of the last call that needs each value; without loss, logged values and gradients."""
        plan, last = self.plan, dict.fromkeys(range(self.plan.leaves), -1)
        for at, call in enumerate(plan.calls):
            last.update(dict.fromkeys((*call.slots(), *call.results()), at))
        for k in plan.wanted:
            last.pop(k, None)
        return last

    def _pieces(self, lines: list[str]) -> tuple[dict[int, int], dict[int, str]]:
        """Splits the row into pieces, one for each parameter.

        Returns (gradients copied into their pieces at the end, gradients written there directly: value -> piece).
        """
        plan, geometry = self.plan, self.plan.geometry
        makers = {call.result.number: call for call in plan.calls if isinstance(call.result, Slot)}
        used: dict[int, int] = defaultdict(int)
        for k in plan.gradients:
            used[-1 if k is None else geometry[k].home] += 1
        written = {geometry[k].home for call in plan.calls for k in call.written()}
        copied, direct = {}, {}
        begin = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        lines.append(
            f"    {', '.join(f'g{i}' for i in range(len(self.sizes)))}, = row.split_with_sizes({tuple(self.sizes)}, -1)"
        )
        for i, k in enumerate(plan.gradients):
            if k is None:
                lines.append(f"    g{i}.zero_()")
                continue
            maker = makers.get(k)
            fresh = maker is not None and full_name(maker.op) in WRITES_OUT and geometry[k].home == k
            aligned = begin[i] * geometry[k].dtype.itemsize % ALIGNMENT == 0
            fresh = fresh and (aligned if self.bold is None else i in self.bold)
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
            return (
                f"[{', '.join(parts)}]"
                if any(slots_in(value)) or None in value
                else f"({', '.join(parts)}{',' * bool(parts)})"
            )
        if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        return self._bound(value)

    def _bound(self, thing: Any, label: str = "constant") -> str:
        """The name of a function or object in the namespace of the source."""
        name = self.functions.get(id(thing))
        if name is None:
            name = label if label not in self.namespace else f"{label}_{len(self.functions)}"
            self.functions[id(thing)] = name
            self.namespace[name] = thing
        return name


def _target(result: Any) -> str:
    """The assignment target of a call's result, as source."""
    if isinstance(result, Slot):
        return f"t{result.number}"
    if isinstance(result, (list, tuple)):
        parts = [_target(part) or "_" for part in result]
        return f"({', '.join(parts)},)" if parts else ""
    return ""


def _with_out(call: Call) -> Any:
    return {"aten::mm": torch.mm, "aten::sum.dim_IntList": torch.sum, "aten::bmm": torch.bmm}[full_name(call.op)]


class _Probe(TorchDispatchMode):
    """A mode that notes calls without carrying them out; every result is `answer`."""

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
    """A function of torch's Python interface that makes exactly this call, or else the operator itself.

    Such a function has less overhead than the operator.
    """
    name = call.op._schema.name.removeprefix("aten::")
    if call.op.namespace != "aten":
        return getattr(call.op, "function", call.op)
    for place in _PLACES:
        function = getattr(place, name, None)
        if function is not None and _makes(function, call, geometry):
            return function
    return getattr(call.op, "_op", call.op)


_PLACES = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)


def _makes(function: Any, call: Call, geometry: dict[int, Geometry]) -> bool:
    """Whether the function with these arguments makes exactly this call, tried on tensors without memory."""
    tensors: dict[int, Tensor] = {}

    def stand_in(slot: Slot) -> Tensor:
        if slot.number not in tensors:
            tensors[slot.number] = _empty(geometry[slot.number], torch.device("meta"))
        return tensors[slot.number]

    args, kwargs, answer = (mapped(part, Slot, stand_in) for part in (list(call.args), call.kwargs, call.result))
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


def _alike(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Tensor) or isinstance(theirs, Tensor):
        return ours is theirs
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_alike(value, theirs[name]) for name, value in ours.items())
    return type(ours) is type(theirs) and (ours == theirs or ours != ours)
