"""Programs for the training steps of a module, one per kind of batch, compared with autograd before their first use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raylfl.core.recorded import graphs
from raylfl.core.recorded.calls import Recording, mapped, same_bits
from raylfl.core.recorded.graphs import Captured
from raylfl.core.recorded.guards import Refused
from raylfl.core.recorded.memory import Arena
from raylfl.core.recorded.program import Program
from raylfl.core.recorded.state import State, first_difference, outside_of, shown, state_of
from raylfl.core.recorded.tape import record
from raylfl.core.step_log import LogCall, StepLog
from raylfl.errors import BadConfig

SEEN = 1  # steps of a kind by autograd before the first recording: many kinds occur only once
RECORDED = 3  # further steps of a kind, recorded or compared, before replays begin
DECISIVE = 4096  # so many entries with equal bits in one step show that two orders of a product round alike
MOST = 128  # largest number of kinds with a program; then the least recently used one is dropped

Loss = Callable[[Any], Tensor]  # content of a batch -> its loss, with a graph
Gradient = Callable[[Tensor], Sequence[Tensor | None]]  # loss -> one gradient per parameter


class _Kind:
    """The state of one kind of batch: the number of its steps, their first recording, and their program."""

    def __init__(self) -> None:
        self.used = 0
        self.recording: Recording | None = None
        self.program: Program | Captured | None = None


class RecordedSteps:
    """Losses and gradients of a module's training step, by replays of recordings that have autograd's bits.

    A kind of batch is given by shapes, dtypes, memory order and the modes of the module's parts. The first steps of a
    kind use autograd, and the next two are recorded. A replay of the first recording is compared with autograd on the
    batch of the second one. Later steps are replayed; a step whose number is a power of two is compared again.
    refusal: why steps of this module are not replayed; all its steps then use autograd, with the same results.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: Sequence[Tensor],
        loss: Loss,
        gradient: Gradient,
        log: StepLog | None = None,
        clients: Callable[[Any], tuple[int, ...]] = lambda content: (),
        changing: Callable[[Any], Sequence[Tensor]] = lambda content: (),
        seen: int = SEEN,
    ):
        """Training steps of this module.

        loss: gives the loss of a batch's content. gradient: gives one gradient per parameter for a loss. log: receives
        the values that the step logs. clients: gives the leading shape of losses and gradients for a content, () for a
        single client and (C,) for a cohort. changing: gives the tensors of a content that the step may overwrite. seen:
        the number of steps of a kind before the first recording.
        """
        self.clients, self.changing, self.seen = clients, changing, seen
        self.log = log or StepLog()
        self.module, self.loss, self.gradient = module, loss, gradient
        self.sizes = [p.numel() for p in parameters]
        self.device, self.dtype = parameters[0].device, parameters[0].dtype
        self.parts = list(module.modules())
        self.buffers = list(module.buffers())
        self.kinds: OrderedDict[Any, _Kind] = OrderedDict()
        self.refusal = _compiled_part(module)
        self.arena = Arena()
        self.captures: graphs.Capture | None = graphs.capture_on_cuda if self.device.type == "cuda" else None
        self.no_graph: str | None = None  # why replays use no CUDA graph although the device has them
        self._state: State | None = None  # state of the module at the last recording
        self._outside = State()  # the part of it that is outside the module
        self._new = False  # whether that recording was made after the last call of `begin`
        self._doubted = False

    def doubt(self) -> None:
        """Makes the next call of `program` check whether other methods have changed the module's attributes."""
        self._doubted = True

    def begin(self) -> None:
        """Compares the state with that of the recordings, before the local work of a client.

        The module's attributes must have their initial values. They are compared once after each recording, and the
        variables outside the module each time.
        """
        if self._state is not None and self.refusal is None:
            self._doubted |= self._new
            self._new = False
            self._compare(self._outside, outside_of(self._state))

    def program(self, content: Any) -> Program | Captured | None:
        """The program with which to replay the step for a batch with this content; None: `take` must compute it."""
        if self._doubted:
            self._look_again()
        if self.refusal is not None:
            return None
        kind = self._kind(content)
        if kind is None or kind.program is None:
            return None
        due = kind.used + 1
        if due & (due - 1) == 0:  # a power of two: compared again
            return None
        kind.used = due
        return kind.program

    def replay(self, program: Program | Captured, content: Any) -> tuple[Tensor, Tensor]:
        """(loss, gradient [d]) of a step, or (losses [C], gradients [C, d]) of a cohort, computed by this program.

        program: from the method `program`, for this content. The calls of `self.log` are passed to `log.sink`.
        """
        row = torch.empty(*self.clients(content), sum(self.sizes), device=self.device, dtype=self.dtype)
        loss, *values = program(leaves_of(content), row)
        for part, training in program.modes:
            part.training = training
        if program.logs and self.log.sink is not None:
            for call in program.logged(values):
                self.log.sink(call.name, call.value, **call.options)
        return loss, row

    def take(self, content: Any) -> tuple[Tensor, Tensor]:
        """(loss, gradient [d]) of a step, or (losses [C], gradients [C, d]) of a cohort, computed by autograd.

        The step may also be recorded, or compared with its replay. Raises BadConfig if earlier steps of the kind were
        replayed on a CPU and this replay differs.
        """
        kind = None if self.refusal is not None else self._kind(content)
        if kind is None:
            return self._plainly(content)
        kind.used += 1
        self._doubted = True  # a step that is not recorded may change the state
        if kind.used <= self.seen:
            return self._plainly(content)
        first, step = kind.recording, partial(self.loss, content)
        content = mapped(content, Tensor, lambda tensor: tensor)  # a copy: the step may take parts out of a dict
        before = self._changing(content)
        if kind.program is not None:
            with self.log.calls() as logged:
                loss, row = self._of(step(), content)
        else:
            changing = self.changing(content)
            loss, rows, found, logged = record(self.module, leaves_of(content), step, self.gradient, self.log, changing)
            loss, row = loss.detach(), self._row(rows, self.clients(content))
            if isinstance(found, str):
                self._refuse(found)
                return loss, row
            self._state, self._new = state_of(self.module), True
            self._outside = outside_of(self._state)
            if first is None:
                kind.recording = found
                return loss, row
            if not first.same_list(found):
                self._refuse("does not take the same course in every step")
                return loss, row
            kind.program = Program(first, self.sizes, self._large_gradients(self.clients(content)), self.arena)
        taken = [loss, row, *_tensors(logged)]
        differs = self._difference(kind.program, content, before, taken)
        if differs is not None and isinstance(kind.program, Program) and kind.program.direct:
            kind.program = self._only_equal(kind.program, content, before, row)
            differs = self._difference(kind.program, content, before, taken)
        if differs is not None and isinstance(kind.program, Program) and kind.program.arena is not None:
            kind.program = Program(kind.program.recording, self.sizes, kind.program.direct)
            differs = self._difference(kind.program, content, before, taken)
        if differs is None and isinstance(kind.program, Program) and self.captures is not None:
            kind.program = self._captured(kind.program, content, before, taken)
        if differs is not None:
            self._refuse(differs)
            if kind.used > self.seen + RECORDED and self.device.type == "cpu":
                raise BadConfig(
                    f"{type(self.module).__name__}.training_step took another course than in its first steps, because "
                    "of something outside the module; replayed steps may be wrong (set runtime.step=autograd)"
                )
        return loss, row

    def _large_gradients(self, clients: tuple[int, ...]) -> set[int] | None:
        """The positions of the large gradients of a cohort, which its first program computes directly into their rows.

        clients: (C,), or () for a single client, for which the result is None. Small gradients are copied into their
        rows: the copy is cheap, and equal bits in a single comparison could be chance.
        """
        if not clients:
            return None
        return {i for i, size in enumerate(self.sizes) if clients[0] * size >= DECISIVE}

    def _only_equal(self, program: Program, content: Any, before: Any, expected: Tensor) -> Program:
        """A new program that computes a gradient directly into its row only if this gives autograd's bits.

        program: computes the gradients `program.direct` directly into their rows. before: the state before a step, from
        `_changing`. expected: the step's gradients by autograd.
        """
        assert program.direct is not None
        try:
            row, _ = self._again(program, content, before)
        except RuntimeError:
            return Program(program.recording, self.sizes, set(), program.arena)
        pieces = zip(row.split(self.sizes, -1), expected.split(self.sizes, -1), strict=True)
        same = {i for i, (ours, theirs) in enumerate(pieces) if same_bits(ours, theirs)}
        return Program(program.recording, self.sizes, program.direct & same, program.arena)

    def _captured(self, program: Program, content: Any, before: Any, taken: Sequence[Tensor]) -> Program | Captured:
        """The program as a CUDA graph if the graph has autograd's bits; else the program, and the reason in `no_graph`.

        content: the batch. before: the state before a step, from `_changing`. taken: the step's loss, gradient and
        logged values by autograd.
        """
        assert self.captures is not None
        after = self._changing(content)
        try:
            if sum(isinstance(kind.program, Captured) for kind in self.kinds.values()) >= graphs.MOST:
                self.no_graph = f"there are more than {graphs.MOST} kinds of batches"
                return program
            captured = Captured(program, leaves_of(content), taken[1], self.captures)
        except RuntimeError as error:
            self.no_graph, self.captures = f"the capture failed ({str(error).splitlines()[0]})", None
            return program
        finally:
            self._restore(content, after)
        differs = self._difference(captured, content, before, taken)
        if differs is not None:
            self.no_graph, self.captures = f"the graph {differs}", None
            return program
        return captured

    def _plainly(self, content: Any) -> tuple[Tensor, Tensor]:
        return self._of(self.loss(content), content)

    def _of(self, loss: Tensor, content: Any) -> tuple[Tensor, Tensor]:
        return loss.detach(), self._row(self.gradient(loss), self.clients(content))

    def _row(self, rows: Sequence[Tensor | None], clients: tuple[int, ...]) -> Tensor:
        pieces = zip(rows, self.sizes, strict=True)
        return torch.cat(
            [
                torch.zeros(*clients, size, device=self.device, dtype=self.dtype)
                if g is None
                else g.reshape(*clients, -1)
                for g, size in pieces
            ],
            dim=-1,
        )

    def _kind(self, content: Any) -> _Kind | None:
        try:
            key = (kind_of(content), self.log.sink is None, *[m.training for m in self.parts])
        except Refused as refused:
            self._refuse(str(refused))
            return None
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = _Kind()
            if len(self.kinds) > MOST:
                self.kinds.popitem(last=False)
        elif len(self.kinds) == MOST:
            self.kinds.move_to_end(key)
        return kind

    def _look_again(self) -> None:
        self._doubted = False
        if self._state is not None and self.refusal is None:
            self._compare(self._state.without_metrics(), state_of(self.module).without_metrics())

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Refuses replays if two snapshots of the state differ."""
        changed = first_difference(before, now)
        if changed is not None:
            self._refuse(f"may depend on {shown(changed)}, which is changed elsewhere")

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        self.kinds.clear()

    def _changing(self, content: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Copies of the state that a step may change: (tensors, states of torch's random generators).

        The tensors are the module's buffers and the tensors of the content that the step may overwrite.
        """
        return [b.detach().clone() for b in (*self.buffers, *self.changing(content))], self._generators()

    def _generators(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def _restore(self, content: Any, state: tuple[list[Tensor], list[Tensor]]) -> None:
        buffers, generators = state
        for buffer, value in zip((*self.buffers, *self.changing(content)), buffers, strict=True):
            buffer.detach().copy_(value)
        torch.set_rng_state(generators[0])
        if len(generators) > 1:
            torch.cuda.set_rng_state(generators[1], self.device)

    def _difference(
        self, program: Program | Captured, content: Any, before: Any, taken: Sequence[Tensor]
    ) -> str | None:
        """How a replay differs from the step that autograd has just computed, as text; None if all bits are equal.

        before: the state before the step, from `_changing`. taken: the step's loss, gradient and logged values by
        autograd.
        """
        try:
            row, ours = self._again(program, content, before)
        except RuntimeError as error:
            return f"cannot be replayed ({str(error).splitlines()[0]})"
        after = self._changing(content)
        ours.insert(1, row)
        theirs = [*taken, *after[0], *after[1]]
        same = len(ours) == len(theirs) and all(map(same_bits, ours, theirs))
        return None if same else "does not have autograd's bits when it is replayed"

    def _again(self, program: Program | Captured, content: Any, before: Any) -> tuple[Tensor, list[Tensor]]:
        """(gradient, [loss, logged values..., changed tensors..., generator states...]) of a replay.

        before: the state in which the replay starts, from `_changing`. The current state is restored afterwards.
        """
        after = self._changing(content)
        self._restore(content, before)
        shape = *self.clients(content), sum(self.sizes)
        row = torch.full(shape, torch.nan, device=self.device, dtype=self.dtype)
        try:
            loss, *logged = program(leaves_of(content), row)
            state = self._changing(content)
            return row, [loss, *logged, *state[0], *state[1]]
        finally:
            self._restore(content, after)


def _compiled_part(module: nn.Module) -> str | None:
    """The reason for a refusal if torch.compile has compiled a part of the module: it would compile the recording."""
    for name, part in module.named_modules():
        if part._compiled_call_impl is not None or type(part).__module__.startswith("torch._dynamo"):
            return f"calls `{name}`, which torch.compile has compiled"
    return None


def _tensors(logged: Sequence[LogCall]) -> list[Tensor]:
    return [call.value for call in logged if isinstance(call.value, Tensor)]


def kind_of(content: Any) -> Any:
    """A key of the structure of a batch's content, equal for batches that one program can compute.

    Raises Refused for a content that holds anything but tensors in tuples, lists and dicts.
    """
    if isinstance(content, Tensor):
        return content.shape, content.stride(), content.dtype, content.requires_grad
    if type(content) is tuple or type(content) is list:
        return type(content), *[kind_of(part) for part in content]
    if type(content) is dict:
        return dict, *[(name, kind_of(part)) for name, part in content.items()]
    raise Refused(f"gets batches that hold more than tensors ({type(content).__name__})")


def leaves_of(content: Any) -> Sequence[Tensor]:
    """The tensors in the content of a batch (nested tuples, lists and dicts), in order."""
    if isinstance(content, Tensor):
        return [content]
    if type(content) is tuple and all(isinstance(part, Tensor) for part in content):
        return content
    parts = content.values() if isinstance(content, dict) else content
    return [leaf for part in parts for leaf in leaves_of(part)]


def recorded(
    module: nn.Module, parameters: Sequence[Tensor], content: Any, loss: Callable[[Any], Tensor]
) -> Recording | None:
    """The recording of one training step on a batch; None if the step fails or cannot be recorded.

    content: the content of the batch. loss: gives the loss of a content.
    """

    def gradient(value: Tensor) -> Sequence[Tensor | None]:
        return torch.autograd.grad(value, parameters, allow_unused=True)

    try:
        found = record(module, leaves_of(content), lambda: loss(content), gradient)[2]
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError, IndexError, Refused):
        return None  # the step itself will raise the error
    return found if isinstance(found, Recording) else None
