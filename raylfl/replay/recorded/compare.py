"""Repetition of a step: from the same state, and without a trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raylfl.replay.contents import leaves_of
from raylfl.replay.proof import Outcome
from raylfl.replay.recorded.program import Program


class StepState(NamedTuple):
    """Copies of what a step may change: tensors by name, modes of the module's parts, states of random generators."""

    tensors: dict[str, Tensor]
    modes: list[bool]
    generators: tuple[Any, ...]


class Repetition:
    """Repetitions of the steps of a module that leave no trace.

    A step's content is the content of its batch. It may change the content, the module's parameters and buffers, the
    training modes of its parts, and the global random generators. row: gives new memory for the gradient of a step on a
    content, filled with nan.
    """

    def __init__(self, module: nn.Module, row: Callable[[Any], Tensor]):
        self.row, self.parts = row, list(module.modules())
        self.held = dict([*module.named_parameters(), *module.named_buffers()])

    def _changing(self, content: Any) -> dict[str, Tensor]:
        return {**self.held, **{f"batch[{k}]": leaf for k, leaf in enumerate(leaves_of(content))}}

    def state(self, content: Any) -> StepState:
        """The current state of what a step on this content may change."""
        tensors = {name: tensor.detach().clone() for name, tensor in self._changing(content).items()}
        generators = torch.get_rng_state(), np.random.get_state(), random.getstate()
        return StepState(tensors, [part.training for part in self.parts], generators)

    def restore(self, content: Any, state: StepState) -> None:
        """Sets what a step may change to an earlier state."""
        for name, tensor in self._changing(content).items():
            tensor.detach().copy_(state.tensors[name])
        for part, training in zip(self.parts, state.modes, strict=True):
            part.training = training
        torch.set_rng_state(state.generators[0])
        np.random.set_state(state.generators[1])
        random.setstate(state.generators[2])

    @contextmanager
    def again(self, content: Any, state: StepState) -> Iterator[None]:
        """A context that begins with an earlier state, and ends with the state in front of it."""
        current = self.state(content)
        self.restore(content, state)
        try:
            yield
        finally:
            self.restore(content, current)

    def outcome(self, loss: Tensor, row: Tensor, logged: Iterable[tuple[str, Tensor]], content: Any) -> Outcome:
        """The outcome of a step that has just ended. logged: (name, tensor) of each call of `self.log`."""
        state = self.state(content)
        others = {"random numbers": state.generators[0], "training modes": torch.tensor(state.modes)}
        return Outcome(loss, row, list(logged), state.tensors | others)

    def replay(self, program: Program, content: Any, state: StepState) -> Outcome:
        """The outcome of a replay on this content, from this state; the current state is kept."""
        with self.again(content, state):
            row = self.row(content)
            loss, *values = program(leaves_of(content), row)
            for part, training in program.modes:
                part.training = training
            logged = [(call.name, torch.as_tensor(call.value)) for call in program.log_calls(values)]
            return self.outcome(loss, row, logged, content)
