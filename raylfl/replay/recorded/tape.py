"""Recording of a training step and its backward pass: the ATen operator calls below autograd, in order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from raylfl.replay.contents import Refused, leaves_of
from raylfl.replay.recorded.calls import Call, Geometry, Recording, Slot, map_parts, parts_of
from raylfl.replay.recorded.guards import AS_VIEWS, Watch, forbidden, line_of_step
from raylfl.replay.step_log import LogCall, StepLog

_MARK = "_raylfl_slot"  # the attribute of a tensor that holds its number in the current recording


class Tape(TorchDispatchMode):
    """A torch dispatch mode that lists every operator call while it is executed, and numbers all tensors.

    reason: why the listed calls are not a valid recording, as the end of a sentence that begins with `training_step`;
    None if they are valid. outside: by number, the tensors that the step uses although it does not make them.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outside: dict[int, Tensor] = {}
        self.calls: list[Call] = []
        self.geometry: dict[int, Geometry] = {}
        self.constants: dict[int, Tensor] = {}
        self.reason: str | None = None
        self.key = object()  # identifies this tape in marks; unlike the tape itself, it can be pickled with a tensor
        self._marked: list[Tensor] = []  # inputs, whose marks are removed at the end
        self._memory: dict[int, int] = {}  # storage of an input -> number of the tensor that first used it
        self._start: dict[int, int] = {}  # number of a tensor of the batch -> its storage offset
        self._fixed: set[int] = set()  # values that first used memory with the same entries in every step
        self._next = 0

    def take_in(self, tensor: Tensor) -> int:
        """Gives a new number to a tensor that exists before the step, and returns the number."""
        self._marked.append(tensor)
        base = self._memory.setdefault(_storage(tensor), self._next)
        return self.number_anew(tensor, base)

    def take_leaf(self, tensor: Tensor) -> int:
        """Gives a new number to a tensor of the batch, and returns the number.

        Raises Refused for a tensor that shares memory with an earlier one.
        """
        if _number(tensor, self) is not None or _storage(tensor) in self._memory:
            raise Refused("gets batches whose tensors share memory")
        self._start[self._next] = int(tensor.storage_offset())
        return self.take_in(tensor)

    def forget(self) -> None:
        """Removes the attribute with the number from all tensors that `take_in` and `take_leaf` have numbered."""
        for tensor in self._marked:
            if hasattr(tensor, _MARK):
                delattr(tensor, _MARK)

    def number_anew(self, tensor: Tensor, base: int | None = None) -> int:
        """Gives a new number to a tensor, and returns the number.

        base: the number of the value that first used its memory; None: the tensor itself. Raises Refused for a sparse,
        complex or quantised tensor.
        """
        if tensor.layout != torch.strided or tensor.dtype.is_complex or tensor.is_quantized:
            raise Refused(f"uses a sparse, complex or quantised tensor ({tensor.layout}, {tensor.dtype})")
        number, self._next = self._next, self._next + 1
        setattr(tensor, _MARK, (self.key, number))
        base = number if base is None else base
        self.geometry[number] = Geometry.of(tensor, base, self._start.get(base, 0))
        return number

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self.reason is not None:
            return func(*args, **kwargs)
        try:
            reason = forbidden(func, args, kwargs, self._is_fixed)
            if reason is not None:
                raise Refused(reason)
            numbered = self._number_tensors(func, args, kwargs)
            strided = func._schema.name.startswith("aten::as_strided")
            if strided and self.geometry[numbered[0][0].number].base in self._start:
                raise Refused("makes views of a batch with strides of its own (`as_strided`)")
        except Refused as refused:
            self.reason = f"{refused}{line_of_step()}"
            return func(*args, **kwargs)
        tensors = list(parts_of((args, kwargs), Tensor))
        result = func(*args, **kwargs)
        try:
            if func in AS_VIEWS:
                out: Any = Slot(self._renumber(args[0]))
            else:
                out = map_parts(result, Tensor, lambda t: self._out(t, tensors))
            call = Call(AS_VIEWS.get(func, func), tuple(numbered[0]), numbered[1], out)
            self.calls.append(call)
            self._mark_fixed(call)
        except Refused as refused:
            self.reason = f"{refused}{line_of_step()}"
        return result

    def _is_fixed(self, tensor: Tensor) -> bool:
        """Whether a tensor has the same entries in every step, because it is computed from plain numbers and shapes."""
        number = _number(tensor, self)
        return number is not None and self.geometry[number].base in self._fixed

    def _mark_fixed(self, call: Call) -> None:
        """Determines whether the results of a call have the same entries in every step."""
        bases = {self.geometry[k].base for k in call.slots()}
        changed = {self.geometry[k].base for k in (*call.results(), *call.written())}
        if call.factory or (bases and bases <= self._fixed and not call.draws):
            self._fixed |= changed
        elif not call.views:
            self._fixed -= changed

    def _number_tensors(self, func: Any, args: Any, kwargs: Any) -> Any:
        """[args, kwargs] of a call with a `Slot` in place of each tensor.

        An unknown tensor, neither of the module or batch nor a result of an earlier call, is taken in as one that
        exists before the step: an attribute of any object. Whether it does, a replay on another batch shows.
        """
        constant = func._schema.name == "aten::lift_fresh"  # a tensor made of numbers, `torch.tensor(0.5)`

        def slot(tensor: Tensor) -> Slot:
            number = _number(tensor, self)
            if number is None and constant:
                number = self.number_anew(tensor)
                self.constants[number] = tensor.clone()
                self._fixed.add(number)
            elif number is None:
                if self._memory.get(_storage(tensor)) in self._start:
                    raise Refused("uses a tensor that shares memory with the batch")
                number = self.take_in(tensor)
                self.outside[number] = tensor
            return Slot(number)

        return map_parts([args, kwargs], Tensor, slot)

    def _renumber(self, tensor: Tensor) -> int:
        """Gives a new number to a tensor whose shape a call has changed in place, and returns the number.

        Raises Refused for a tensor that exists before the step.
        """
        number = _number(tensor, self)
        if number is None or any(tensor is held for held in self._marked):
            raise Refused("changes the shape of a batch, parameter or buffer in place")
        return self.number_anew(tensor, self.geometry[number].base)

    def _out(self, tensor: Tensor, tensors: Sequence[Tensor]) -> Slot:
        number = _number(tensor, self)
        if number is None:
            if tensor.layout != torch.strided:
                return Slot(self.number_anew(tensor))  # raises Refused
            storage = _storage(tensor)
            numbers = [_number(t, self) for t in tensors if _storage(t) == storage]
            bases = [self.geometry[k].base for k in numbers if k is not None]
            number = self.number_anew(tensor, bases[0] if bases else None)
        return Slot(number)


def _number(tensor: Tensor, tape: Tape) -> int | None:
    mark = getattr(tensor, _MARK, None)
    return mark[1] if mark is not None and mark[0] is tape.key else None


def number_of(tensor: Tensor, tape: Tape) -> int:
    """The number of a tensor in a tape's recording; raises Refused for a tensor without one."""
    number = _number(tensor, tape)
    if number is None:
        raise Refused("has a loss, a gradient or a logged number of unknown origin")
    return number


def _storage(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():  # vmap calls this on exit, while `Watch` is active
        return int(tensor.untyped_storage()._cdata)


def record(
    module: nn.Module,
    leaves: Sequence[Tensor],
    step: Callable[[], Tensor],
    gradients: Callable[[Tensor], Sequence[Tensor | None]],
    log: StepLog | None = None,
    changing: Sequence[Tensor] = (),
) -> Recording | str:
    """Runs a step and its backward pass; returns their recording, or the reason why there is none.

    leaves: the tensors of the batch. step: computes the loss. gradients: computes the gradient of each parameter from
    the loss. log: the log of the step. changing: tensors of the batch that the step may overwrite, besides the module's
    buffers. Errors of the step are raised.
    """
    tape, watch, log = Tape(), Watch(), log or StepLog()
    modes = [(part, part.training) for part in module.modules()]
    inputs: dict[int, Tensor] = {}
    buffers: set[int] = set()
    try:
        for leaf in leaves:
            tape.take_leaf(leaf)
        held = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
        inputs = {tape.take_in(tensor): tensor for tensor in held.values()}
        buffers = {number_of(b, tape) for b in (*module.buffers(), *changing)}
    except Refused as refused:
        tape.reason = str(refused)
    try:
        with log.calls() as logged, tape, watch.everywhere():
            loss = step()
            rows = gradients(loss)
        inputs |= tape.outside
        reason = tape.reason or watch.reason
        if reason is not None:
            raise Refused(reason)
        return Recording(
            calls=tape.calls,
            geometry=tape.geometry,
            leaves=len(leaves),
            inputs=inputs,
            constants=tape.constants,
            loss=number_of(loss, tape),
            gradients=[None if g is None else number_of(g, tape) for g in rows],
            buffers=buffers,
            logged=_number_logged(logged, tape),
            modes=[(part, part.training) for part, training in modes if part.training != training],
        )
    except Refused as refused:
        return str(refused)
    finally:
        tape.forget()


def _number_logged(logged: Sequence[LogCall], tape: Tape) -> list[LogCall]:
    """The calls of `self.log` with a `Slot` in place of each tensor.

    Raises Refused for a logged value that is neither a tensor nor a number.
    """
    for call in logged:
        if not isinstance(call.value, (Tensor, int, float)):
            raise Refused(f"logs an object of the class {type(call.value).__name__}")
    return [
        call._replace(value=Slot(number_of(call.value, tape))) if isinstance(call.value, Tensor) else call
        for call in logged
    ]


def record_step(
    module: nn.Module, parameters: Sequence[Tensor], content: Any, loss: Callable[[Any], Tensor]
) -> Recording | None:
    """The recording of one training step on a batch; None if the step fails or cannot be recorded.

    content: the content of the batch. loss: gives the loss of a content.
    """

    def gradient(value: Tensor) -> Sequence[Tensor | None]:
        return torch.autograd.grad(value, parameters, allow_unused=True)

    try:
        recording = record(module, leaves_of(content), lambda: loss(content), gradient)
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError, IndexError, Refused):
        return None  # the step itself will raise the error
    return recording if isinstance(recording, Recording) else None
