"""Programs for the training steps of a module, one per kind of batch, used where their results were the step's own."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raylfl.errors import BadConfig, headline
from raylfl.replay.contents import Refused, kind_of, leaves_of, map_leaves
from raylfl.replay.effects import StepState
from raylfl.replay.proof import Diverged, Outcome, ProofSchedule, difference, same_bits
from raylfl.replay.recorded.memory import Arena
from raylfl.replay.recorded.program import Program
from raylfl.replay.recorded.tape import record
from raylfl.replay.step_log import LogCall, StepLog

SEEN = 1  # steps of a kind before the first recording: many kinds occur only once
DECISIVE = 4096  # so many entries with equal bits in one step show that two orders of a product round alike
MOST = 128  # largest number of kinds with a program; then the oldest one is dropped, to be recorded again

Loss = Callable[[Any, int], Tensor]  # content of a batch, number of the local step -> its loss, with a graph
Gradient = Callable[[Tensor], Sequence[Tensor | None]]  # loss -> one gradient per parameter
Step = Callable[[Any, int], tuple[Tensor, Tensor]]  # content, number of the local step -> (loss, gradient)


class _Kind:
    """The state of one kind of batch.

    used: the number of its steps that were not replayed. program: made of one of them. schedule: of the program's
    comparisons with the step. replays: the number of the program's uses, by the number of the local step.
    """

    def __init__(self) -> None:
        self.used, self.schedule, self.replays = 0, ProofSchedule(), Counter[int]()
        self.program: Program | None = None


class RecordedSteps:
    """Losses and gradients of a module's training step, by replays of recordings that have the reference's bits.

    A kind of batch is given by shapes, dtypes, memory order and the modes of the module's parts. The step itself
    computes the first steps of a kind. One of them is recorded, and the next ones are repeated from the same state as
    replays, whose results must be the same. `ProofSchedule` says which steps are compared: also the first one of each
    number (`batch_idx`).

    refusal: why steps of this module are not replayed; the step itself then computes all of them.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: Sequence[Tensor],
        loss: Loss,
        gradient: Gradient,
        log: StepLog | None = None,
        seen: int = SEEN,
        reference: Step | None = None,
    ):
        """Training steps of this module.

        loss: gives the loss of a batch's content. gradient: gives one gradient per parameter for a loss. log: receives
        the values that the step logs. seen: the number of steps of a kind before the first recording. reference: the
        step; None: `loss` and `gradient`.
        """
        self.seen, self.log, self.reference = seen, log or StepLog(), reference or self._by_autograd
        self.module, self.loss, self.gradient = module, loss, gradient
        numbers = {id(p): name for name, p in module.named_parameters()}
        self.pieces = {numbers.get(id(p), f"parameter {k}"): p.numel() for k, p in enumerate(parameters)}
        self.sizes = list(self.pieces.values())
        self.device, self.dtype = parameters[0].device, parameters[0].dtype
        self.parts = list(module.modules())
        self.kinds: dict[Any, _Kind] = {}
        self.refusal = None if self.device.type == "cpu" else "runs on a GPU"
        self.arena = Arena()

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
        """Called before an evaluation, which may change a step."""
        for kind in self.kinds.values():
            kind.schedule.doubt()

    def program(self, content: Any, t: int = 0) -> Program | None:
        """The program with which to replay the step for a batch with this content; None: `take` must compute it.

        t: the number of the local step.
        """
        if self.refusal is not None:
            return None
        kind = self._kind(content)
        if kind is None or kind.program is None or kind.schedule.due(None, t):
            return None
        kind.replays[t] += 1
        return kind.program

    def replay(self, program: Program, content: Any) -> tuple[Tensor, Tensor]:
        """(loss, gradient [d]) of a step, or (losses [C], gradients [C, d]) of a cohort, computed by this program.

        program: from the method `program`, for this content. The calls of `self.log` are passed to `log.sink`.
        """
        loss, *values = program(leaves_of(content), row := self._new_row(program.clients))
        if program.logs and self.log.sink is not None:
            for call in program.log_calls(values):
                self.log.sink(call.name, call.value, **call.options)
        return loss, row

    def take(self, content: Any, t: int = 0) -> tuple[Tensor, Tensor]:
        """(loss, gradient [d]) of a step, or (losses [C], gradients [C, d]) of a cohort, computed by the step itself.

        t: the number of the local step. The step is recorded, or compared with the program of its kind. Raises Diverged
        if earlier steps of the kind were replayed and this replay differs.
        """
        kind = None if self.refusal is not None else self._kind(content)
        if kind is None:
            return self.reference(content, t)
        kind.used += 1
        copy = map_leaves(content)  # the step may take parts out of a dict
        start = StepState.of(self.module, content)
        with self.log.calls() as logged:
            loss, row = self.reference(content, t)
        values = dict(self.log.values)
        outcome = start.outcome(loss, row, _tensors(logged))
        effect = start.effect()
        if effect is not None:
            self._differs(kind, t, effect)
        elif kind.used > self.seen:
            self._repeat(kind, copy, t, start, outcome)
        self.log.values = values  # of the step, not of its repetitions
        return loss, row

    def _repeat(self, kind: _Kind, content: Any, t: int, start: StepState, outcome: Outcome) -> None:
        """Repeats a step on this content by the kind's program, and compares the results; first makes the program.

        start: the state before the step. outcome: of the step itself.
        """
        if recorded := kind.program is None:
            kind.program = self._record(content, t, start)
            if kind.program is None:
                return
        differs = self._compare(kind, content, start, outcome)
        if differs is None and not recorded:
            kind.schedule.proved(None, t)
        if differs is not None and recorded:
            self._refuse(differs)  # without an error: no replay of this program has been used
        elif differs is not None:
            self._differs(kind, t, differs, self._depends_on(kind, content, start))

    def _record(self, content: Any, t: int, start: StepState) -> Program | None:
        """The program of a step that has just been carried out; None if it cannot be recorded.

        start: the state before the step.
        """
        with start.again():
            content = map_leaves(content, lambda leaf: leaf.detach().clone().requires_grad_(leaf.requires_grad))
            step = partial(self.loss, map_leaves(content), t)
            recording = record(self.module, leaves_of(content), step, self.gradient, self.log)
        if isinstance(recording, str):
            self._refuse(recording)
            return None
        clients, direct = recording.geometry[recording.loss].shape, None
        if clients:  # small gradients are copied: that is cheap, and equal bits in one comparison could be chance
            direct = {i for i, size in enumerate(self.sizes) if clients[0] * size >= DECISIVE}
        return Program(recording, self.sizes, direct, self.arena)

    def _compare(self, kind: _Kind, content: Any, start: StepState, outcome: Outcome) -> str | None:
        """How the program of a kind differs from a step, as text; None if all bits are equal.

        Before its first use, variants of the program are tried if bits differ; one that is equal takes its place.
        """
        program = kind.program
        assert program is not None
        replayed = self._replay(program, content, start)
        differs = self._difference(outcome, replayed)
        if differs is None or kind.replays:
            return differs
        if program.direct:  # only those gradients go directly into their rows that then have autograd's bits
            row = torch.full_like(outcome.row, torch.nan) if isinstance(replayed, str) else replayed.row
            pairs = zip(row.split(self.sizes, -1), outcome.row.split(self.sizes, -1), strict=True)
            equal = {i for i, pair in enumerate(pairs) if same_bits(*pair)}
            program = Program(program.recording, self.sizes, program.direct & equal, self.arena)
            differs = self._difference(outcome, self._replay(program, content, start))
        if differs is not None:
            program = Program(program.recording, self.sizes, program.direct)
            differs = self._difference(outcome, self._replay(program, content, start))
        kind.program = program
        return differs

    def _difference(self, outcome: Outcome, replayed: Outcome | str) -> str | None:
        """How a replay differs from a step, as text; None if all bits are equal. replayed: as from `_replay`."""
        if isinstance(replayed, str):
            return replayed
        differs = difference(outcome, replayed, self.pieces)
        return differs and f"has other results when it is replayed: {differs}"

    def _replay(self, program: Program, content: Any, start: StepState) -> Outcome | str:
        """The outcome of a replay from this state, or why there is none; the current state is kept."""
        with start.again():
            row = self._new_row(program.clients).fill_(torch.nan)
            try:
                loss, *values = program(leaves_of(content), row)
            except RuntimeError as error:
                return f"cannot be replayed ({headline(error)})"
            return start.outcome(loss, row, _tensors(program.log_calls(values)))

    def _new_row(self, clients: Sequence[int]) -> Tensor:
        return torch.empty(*clients, sum(self.sizes), device=self.device, dtype=self.dtype)

    def _by_autograd(self, content: Any, t: int) -> tuple[Tensor, Tensor]:
        loss = self.loss(content, t)
        return loss.detach(), self._row(self.gradient(loss), loss.shape)

    def _row(self, rows: Sequence[Tensor | None], clients: Sequence[int]) -> Tensor:
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
        if key not in self.kinds:
            if len(self.kinds) >= MOST:
                del self.kinds[next(iter(self.kinds))]
            self.kinds[key] = _Kind()
        return self.kinds[key]

    def _depends_on(self, kind: _Kind, content: Any, start: StepState) -> bool:
        """Whether the step on this content, at the number of an earlier local step, has the program's results."""
        earlier = next(iter(kind.replays), None)
        if earlier is None:
            return False
        with start.again(), self.log.calls() as logged:
            loss, row = self.reference(map_leaves(content), earlier)
            again = start.outcome(loss, row, _tensors(logged))
        assert kind.program is not None
        return self._difference(again, self._replay(kind.program, content, start)) is None

    def _differs(self, kind: _Kind, t: int, reason: str, by_number: bool = True) -> None:
        """Ends all replays after a difference; raises Diverged if replays that may be wrong, too, have been used.

        by_number: whether a difference at the first local step of number t may come from this number alone, as in a
        step that does something else at batch_idx 5. No replay has been used at this number.
        """
        alone = by_number and t not in kind.replays
        replays = 0 if alone else sum(k.replays.total() for k in self.kinds.values())
        self._refuse(reason)
        if replays:
            raise Diverged(
                f"{type(self.module).__name__}.training_step {reason}, in local step {t}; "
                f"{replays} steps were replayed before, and the last of them may be wrong",
                "runtime.step=autograd",
            )

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        self.kinds.clear()


def _tensors(logged: Sequence[LogCall]) -> list[tuple[str, Tensor]]:
    """(name, value) of each call of `self.log`; a value that is neither a tensor nor a number has no bits."""
    plain = (Tensor, bool, int, float)
    return [(call.name, torch.as_tensor(call.value)) for call in logged if isinstance(call.value, plain)]
