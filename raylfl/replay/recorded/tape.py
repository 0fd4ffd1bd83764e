"""Recording of a training step and its backward pass: the ATen operator calls below autograd, in order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from raylfl.errors import headline
from raylfl.replay.contents import leaves_of
from raylfl.replay.recorded.calls import Call, Geometry, Recording, Slot, map_parts, parts_of
from raylfl.replay.recorded.guards import AS_VIEWS, Watch, forbidden, line_of_step
from raylfl.replay.step_log import LogCall, StepLog

_aten = torch.ops.aten


class Tape(TorchDispatchMode):
    """A torch dispatch mode that lists every operator call while it is executed, and numbers all tensors.

    reason: why the listed calls are not a valid recording, as the end of a sentence that begins with `training_step`;
    None if they are valid. constants: by number, the tensors that exist before the step, except those of the batch, and
    copies of the tensors that the step makes of plain numbers.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def __init__(self, inputs: Sequence[Tensor]):
        """inputs: the tensors of the batch, or other tensors that are given anew in each step."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.geometry: dict[int, Geometry] = {}
        self.constants: dict[int, Tensor] = {}
        self.reason: str | None = None
        self.inputs = len(inputs)
        self._numbers = WeakIdKeyDictionary()
        self._memory: dict[int, int] = {}  # storage of a tensor that exists before the step -> number of the first one
        self._fixed: set[int] = set()  # values that first used memory with the same entries in every step
        for tensor in inputs:
            self._take_in(tensor)

    def number_of(self, tensor: Tensor) -> int:
        """The number of a tensor.

        A tensor without one, neither of the batch nor a result of an earlier call, is taken in as a constant: a
        parameter, a buffer, or an attribute of any object. Whether it is one, a replay on another batch shows.
        """
        number = self._numbers.get(tensor)
        if number is None:
            number = self._take_in(tensor)
            self.constants[number] = tensor.detach()
        return int(number)

    def recording(self, loss: Tensor, **parts: Any) -> Recording:
        """The recording of the listed calls. parts: further fields of `Recording`."""
        return Recording(self.calls, self.geometry, self.inputs, self.constants, self.number_of(loss), **parts)

    def _take_in(self, tensor: Tensor) -> int:
        """Gives a new number to a tensor that exists before the step, and returns the number."""
        return self._number_anew(tensor, self._memory.setdefault(_storage(tensor), len(self.geometry)))

    def _number_anew(self, tensor: Tensor, base: int | None = None) -> int:
        """Gives a new number to a tensor, and returns the number.

        base: the number of the value that first used its memory; None: the tensor itself.
        """
        number = self._numbers[tensor] = len(self.geometry)
        self.geometry[number] = Geometry.of(tensor, number if base is None else base)
        return number

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self.reason is not None:
            return func(*args, **kwargs)
        tensors = parts_of(Tensor, (args, kwargs))
        reason = forbidden(func, args, self._is_fixed)
        if fresh := func is _aten.lift_fresh.default and args[0] not in self._numbers:  # as by `torch.tensor(0.5)`
            number = self._number_anew(args[0])
            self.constants[number] = args[0].clone()
            self._fixed.add(number)
        slots, keywords = map_parts(Tensor, lambda tensor: Slot(self.number_of(tensor)), (args, kwargs))
        if func._schema.name.startswith("aten::as_strided") and self.geometry[slots[0].number].base < self.inputs:
            reason = "makes views of a batch with strides of its own (`as_strided`)"
        if reason is not None:
            self.reason = reason + line_of_step()
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if fresh:  # the step may write to the tensor
            func, out = _aten.clone.default, Slot(self._number_anew(args[0]))
        elif func in AS_VIEWS:
            out = Slot(self._number_anew(args[0], self.geometry[slots[0].number].base))
        else:
            out = map_parts(Tensor, lambda tensor: Slot(self._out(tensor, tensors)), result)
        call = Call(AS_VIEWS.get(func, func), slots, keywords, out)
        self.calls.append(call)
        self._mark_fixed(call)
        return result

    def _is_fixed(self, tensor: Tensor) -> bool:
        """Whether a tensor has the same entries in every step, because it is computed from plain numbers and shapes."""
        number = self._numbers.get(tensor)
        return number is not None and self.geometry[number].base in self._fixed

    def _mark_fixed(self, call: Call) -> None:
        """Determines whether the results of a call have the same entries in every step."""
        bases = {self.geometry[k].base for k in call.slots}
        changed = {self.geometry[k].base for k in (*call.results, *call.written)}
        if call.factory or (bases and bases <= self._fixed and not call.draws):
            self._fixed |= changed
        elif not call.views:
            self._fixed -= changed

    def _out(self, tensor: Tensor, arguments: Sequence[Tensor]) -> int:
        """The number of a call's result, which may be an argument or share memory with one."""
        number = self._numbers.get(tensor)
        if number is None:
            storage = _storage(tensor)
            shared = (argument for argument in arguments if _storage(argument) == storage)
            bases = [self.geometry[self._numbers[argument]].base for argument in shared]
            number = self._number_anew(tensor, bases[0] if bases else None)
        return int(number)


def _storage(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():  # vmap calls this on exit, while `Watch` is active
        return int(tensor.untyped_storage()._cdata)


def record(
    module: nn.Module,
    leaves: Sequence[Tensor],
    step: Callable[[], Tensor],
    gradients: Callable[[Tensor], Sequence[Tensor | None]],
    log: StepLog | None = None,
) -> Recording | str:
    """Runs a step and its backward pass; returns their recording, or the reason why there is none.

    leaves: the tensors of the batch, which share no memory. step: computes the loss. gradients: computes the gradient
    of each parameter from the loss. log: the log of the step.
    """
    tape, watch, log = Tape(leaves), Watch(), log or StepLog()
    modes = [(part, part.training) for part in module.modules()]
    try:
        with log.calls() as logged, tape, watch.everywhere():
            loss = step()
            rows = gradients(loss)
    except Exception as error:
        return f"fails when it is repeated ({headline(error)})"
    reason = tape.reason or watch.reason or _unknown(logged)
    if reason is not None:
        return reason
    return tape.recording(
        loss,
        gradients=[None if g is None else tape.number_of(g) for g in rows],
        logged=map_parts(Tensor, lambda tensor: Slot(tape.number_of(tensor)), logged),
        modes=[(part, part.training) for part, training in modes if part.training != training],
    )


def _unknown(logged: Sequence[LogCall]) -> str | None:
    """The reason for a refusal if a logged value is neither a tensor nor a number."""
    names = [type(call.value).__name__ for call in logged if not isinstance(call.value, (Tensor, int, float))]
    return f"logs an object of the class {names[0]}" if names else None


def record_step(
    module: nn.Module, parameters: Sequence[Tensor], content: Any, loss: Callable[[Any], Tensor]
) -> Recording | None:
    """The recording of one training step on a batch; None if the step fails or cannot be recorded.

    content: the content of the batch. loss: gives the loss of a content.
    """

    def gradient(value: Tensor) -> Sequence[Tensor | None]:
        return torch.autograd.grad(value, parameters, allow_unused=True)

    recording = record(module, leaves_of(content), lambda: loss(content), gradient)
    return recording if isinstance(recording, Recording) else None
