"""Comparison of a replay with autograd's step: from the same state, to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raylfl.core.recorded.calls import same_bits
from raylfl.core.recorded.contents import leaves_of
from raylfl.core.recorded.program import Program


class StepState(NamedTuple):
    """Copies of what a step may change: tensors, and the state of torch's random generator."""

    tensors: list[Tensor]
    generator: Tensor


class Trial:
    """Replays of a step that leave no trace.

    A step's content is the content of its batch. changing: gives the tensors that a step on a content may overwrite
    (buffers, and tensors of the content). row: gives new memory for the gradient of a step on a content, filled with
    nan.
    """

    def __init__(self, changing: Callable[[Any], Sequence[Tensor]], row: Callable[[Any], Tensor]):
        self.changing, self.row = changing, row

    def state(self, content: Any) -> StepState:
        """The current state of what a step on this content may change."""
        return StepState([tensor.detach().clone() for tensor in self.changing(content)], torch.get_rng_state())

    def restore(self, content: Any, state: StepState) -> None:
        """Sets what a step may change to an earlier state."""
        for tensor, value in zip(self.changing(content), state.tensors, strict=True):
            tensor.detach().copy_(value)
        torch.set_rng_state(state.generator)

    def difference(self, program: Program, content: Any, before: StepState, taken: Sequence[Tensor]) -> str | None:
        """How a replay differs from the step that autograd has just computed, as text; None if all bits are equal.

        before: the state before the step. taken: the step's loss, gradient and logged values by autograd.
        """
        try:
            ours = self.replay(program, content, before)
        except RuntimeError as error:
            return f"cannot be replayed ({str(error).splitlines()[0]})"
        after = self.state(content)
        theirs = [*taken, *after.tensors, after.generator]
        same = len(ours) == len(theirs) and all(map(same_bits, ours, theirs))
        return None if same else "does not have autograd's bits when it is replayed"

    def replay(self, program: Program, content: Any, before: StepState) -> list[Tensor]:
        """[loss, gradient, logged values..., changed tensors..., generator state] of a replay.

        before: the state in which the replay starts. The current state is restored afterwards.
        """
        after, row = self.state(content), self.row(content)
        self.restore(content, before)
        try:
            loss, *logged = program(leaves_of(content), row)
            state = self.state(content)
            return [loss, row, *logged, *state.tensors, state.generator]
        finally:
            self.restore(content, after)
