"""Programs for the training steps of a module, one per kind of batch, compared with autograd before their first use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raylfl.core.recorded.calls import Recording, same_bits
from raylfl.core.recorded.compare import StepState, Trial
from raylfl.core.recorded.contents import copied, kind_of, leaves_of
from raylfl.core.recorded.guards import Refused
from raylfl.core.recorded.memory import Arena
from raylfl.core.recorded.outside import Outside
from raylfl.core.recorded.program import Program
from raylfl.core.recorded.state import State, first_difference, outside_of, shown, state_of
from raylfl.core.recorded.tape import record
from raylfl.core.step_log import StepLog
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
        self.program: Program | None = None


class RecordedSteps:
    """Losses and gradients of a module's training step, by replays of recordings that have autograd's bits.

    A kind of batch is given by shapes, dtypes, memory order and the modes of the module's parts. The first steps of a
    kind use autograd, and the next two are recorded. A replay of the first recording is compared with autograd on the
    batch of the second one, and once more on the next batch. Later steps are replayed; a step whose number is a power
    of two is compared again.

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
        buffers = list(module.buffers())
        self.log = log or StepLog()
        self.module, self.loss, self.gradient = module, loss, gradient
        self.sizes = [p.numel() for p in parameters]
        self.device, self.dtype = parameters[0].device, parameters[0].dtype
        self.parts = list(module.modules())
        width = sum(self.sizes)
        self.trial = Trial(
            lambda content: [*buffers, *changing(content)],
            lambda content: parameters[0].new_full((*clients(content), width), torch.nan),
        )
        self.kinds: OrderedDict[Any, _Kind] = OrderedDict()
        self.refusal = _compiled_part(module) if self.device.type == "cpu" else "runs on a GPU"
        self.arena = Arena()
        self._state: State | None = None  # state of the module at the last recording
        self._outside = State()  # the part of it that is outside the module
        self._new = False  # whether that recording was made after the last call of `begin`
        self._doubted = False

    @property
    def reason(self) -> str:
        """The reason why no step is replayed, as text that begins with an option or `training_step`."""
        reason = str(self.refusal)
        return reason if reason.startswith(("runtime.", "training_step")) else f"training_step {reason}"

    def must_be_possible(self) -> None:
        """Raises BadConfig if steps are not replayed; called under `runtime.step=recorded`."""
        if self.refusal is not None:
            name = type(self.module).__name__
            raise BadConfig(f"runtime.step=recorded, but {name}.training_step {self.refusal} (leave it at auto)")

    def doubt(self) -> None:
        """Makes the next call of `program` check whether other methods have changed the module's attributes."""
        self._doubted = True

    def begin(self) -> None:
        """Checks before the local work of a client that the Python state is still that of the recordings.

        The module's attributes are compared with their initial values once after each recording. The variables outside
        the module are compared each time.
        """
        if self._state is not None and self.refusal is None:
            self._doubted |= self._new
            self._new = False
            self._compare(self._outside, outside_of(self._state))

    def program(self, content: Any) -> Program | None:
        """The program with which to replay the step for a batch with this content; None: `take` must compute it."""
        if self._doubted:
            self._doubted = False
            if self._state is not None and self.refusal is None:
                self._compare(self._state.without_metrics(), state_of(self.module).without_metrics())
        if self.refusal is not None:
            return None
        kind = self._kind(content)
        if kind is None or kind.program is None:
            return None
        due = kind.used + 1
        if due <= self.seen + RECORDED or due & (due - 1) == 0:  # a power of two: compared again
            return None
        kind.used = due
        return kind.program

    def replay(self, program: Program, content: Any) -> tuple[Tensor, Tensor]:
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
        replayed and this replay differs.
        """
        kind = None if self.refusal is not None else self._kind(content)
        if kind is None:
            return self._by_autograd(content)
        kind.used += 1
        self._doubted = True  # a step that is not recorded may change the state
        if kind.used <= self.seen:
            return self._by_autograd(content)
        kept, before = copied(content), self.trial.state(content)  # the step may take parts out of a dict
        if kind.program is not None:
            with self.log.calls() as logged:
                loss, row = self._by_autograd(content)
        else:
            changing, step, clients = self.changing(content), partial(self.loss, content), self.clients(content)
            loss, rows, found, logged = record(self.module, leaves_of(kept), step, self.gradient, self.log, changing)
            loss, row = loss.detach(), self._row(rows, clients)
            if isinstance(found, str):
                self._refuse(found)
            else:
                self._accept(kind, found, clients)
        if kind.program is not None:
            tensors = [call.value for call in logged if isinstance(call.value, Tensor)]
            self._check(kind, kept, before, [loss, row, *tensors])
        return loss, row

    def _accept(self, kind: _Kind, found: Recording, clients: tuple[int, ...]) -> None:
        """Keeps the first recording of a kind, and makes the kind's program if the second one is equal.

        clients: (C,), or () for a single client.
        """
        self._state, self._new = state_of(self.module), True
        self._outside = outside_of(self._state)
        if kind.recording is None:
            kind.recording = found
        elif kind.recording.same_list(found):
            direct = None
            if clients:  # small gradients are copied: that is cheap, and equal bits in one comparison could be chance
                direct = {i for i, size in enumerate(self.sizes) if clients[0] * size >= DECISIVE}
            kind.program = Program(kind.recording, self.sizes, direct, self.arena)
        else:
            self._refuse("does not take the same course in every step")

    def _check(self, kind: _Kind, content: Any, before: StepState, taken: Sequence[Tensor]) -> None:
        """Compares the program of a kind with a step by autograd, and tries its variants if bits differ.

        before: the state before the step. taken: its loss, gradient and logged values by autograd. Raises BadConfig if
        the program was used before.
        """
        program = kind.program
        assert program is not None
        differs = self.trial.difference(program, content, before, taken)
        if differs is not None and program.direct:
            program = self._only_equal(program, content, before, taken[1])
            differs = self.trial.difference(program, content, before, taken)
        if differs is not None and program.arena is not None:
            program = Program(program.recording, self.sizes, program.direct)
            differs = self.trial.difference(program, content, before, taken)
        kind.program = program
        if differs is not None:
            self._refuse(differs)
            if kind.used > self.seen + RECORDED:
                raise BadConfig(
                    f"{type(self.module).__name__}.training_step takes another course than in its first steps: it "
                    f"{differs}. Replayed steps may be wrong (set runtime.step=autograd)"
                )

    def _only_equal(self, program: Program, content: Any, before: StepState, expected: Tensor) -> Program:
        """A new program that computes only those gradients directly into their rows that then have autograd's bits.

        program: computes all gradients in `program.direct` directly into their rows. before: the state before a step.
        expected: the step's gradients by autograd.
        """
        assert program.direct is not None
        try:
            row = self.trial.replay(program, content, before)[1]
        except RuntimeError:
            return Program(program.recording, self.sizes, set(), program.arena)
        pieces = zip(row.split(self.sizes, -1), expected.split(self.sizes, -1), strict=True)
        same = {i for i, (ours, theirs) in enumerate(pieces) if same_bits(ours, theirs)}
        return Program(program.recording, self.sizes, program.direct & same, program.arena)

    def _by_autograd(self, content: Any) -> tuple[Tensor, Tensor]:
        clients, loss = self.clients(content), self.loss(content)
        return loss.detach(), self._row(self.gradient(loss), clients)

    def _row(self, rows: Sequence[Tensor | None], clients: tuple[int, ...]) -> Tensor:
        """The gradient [d] or [C, d] from one gradient per parameter (`rows`), with zeros in place of None."""
        pieces = [
            torch.zeros(*clients, size, device=self.device, dtype=self.dtype) if g is None else g.reshape(*clients, -1)
            for g, size in zip(rows, self.sizes, strict=True)
        ]
        return torch.cat(pieces, dim=-1)

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

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Refuses replays if two snapshots of the state differ."""
        changed = first_difference(before, now)
        if changed is not None:
            how = "changed elsewhere"
            if not isinstance(changed, Outside):  # attributes get their initial values before each client's work
                how = "set by another method, or by the step itself at its first use (then set it in __init__)"
            self._refuse(f"may depend on {shown(changed)}, which is {how}")

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        self.kinds.clear()


def _compiled_part(module: nn.Module) -> str | None:
    """The reason for a refusal if torch.compile has compiled a part of the module: it would compile the recording."""
    for name, part in module.named_modules():
        if part._compiled_call_impl is not None or type(part).__module__.startswith("torch._dynamo"):
            return f"calls `{name}`, which torch.compile has compiled"
    return None
