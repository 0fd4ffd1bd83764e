"""Programs: recorded steps compiled to Python without branches (`plan.py`, `source.py`), and their execution."""

from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from raylfl.replay.proof import same_bits
from raylfl.replay.recorded.calls import Recording, Slot
from raylfl.replay.recorded.memory import Arena, in_fixed_memory
from raylfl.replay.recorded.plan import reduce_calls
from raylfl.replay.recorded.pools import pools_first
from raylfl.replay.recorded.products import reverse_products
from raylfl.replay.recorded.source import Source
from raylfl.replay.recorded.tape import Tape
from raylfl.replay.step_log import LogCall


class Program:
    """A compiled training step: a call writes the gradient and returns the loss and the logged values.

    listing: the Python source. clients: the shape of the loss, () or (C,). draws: whether the step draws random numbers
    from torch's generators. logs: whether it calls `self.log`. without_gradient: as in `FlatModule`.
    """

    def __init__(
        self, recording: Recording, sizes: Sequence[int], direct: Set[int] | None = None, arena: Arena | None = None
    ):
        """Compiles a recording.

        sizes: the number of entries of each parameter, in the order of the gradients. direct: None for a step of one
        client; its gradients are computed directly into the row [d] wherever the parameter's part of the row is aligned
        in memory. For a step of C clients, the positions of the parameters whose gradients are computed directly into
        the rows [C, d] that a call fills; the caller must compare the bits of these gradients. arena: memory on a CPU
        for the values of calls that can write to given memory; None: each step allocates all values, and `fastest` uses
        no functions of its own.
        """
        self.recording, self.sizes, self.direct, self.arena = recording, sizes, direct, arena
        plan = reduce_calls(recording)
        if direct:
            plan = reverse_products(plan, [k for i, k in enumerate(plan.gradients) if i in direct])
        plan = pools_first(plan)
        plan = plan if arena is None else in_fixed_memory(plan, arena)
        self.plan, self.calls, self.draws = plan, plan.calls, any(call.draws for call in plan.calls)
        self.listing, namespace = Source(plan, sizes, direct, faster=arena is not None).write()
        self._function = compile_source(self.listing, namespace)
        self.logs, self.clients = bool(recording.logged), recording.geometry[recording.loss].shape
        self.without_gradient = frozenset(k for k, number in enumerate(recording.gradients) if number is None)

    def __call__(self, leaves: Sequence[Tensor], row: Tensor | None = None) -> tuple[Tensor, ...]:
        """Runs the step and returns (loss, logged values...); buffers and modes change as in the step itself.

        leaves: the tensors of the batch, in order. row: receives the gradient [d], or [C, d] for a step of C clients;
        None if the recording has no gradients.
        """
        with torch._C._AutoDispatchBelowAutograd():
            results = self._function(row, *leaves)
        for part, training in self.recording.modes:
            part.training = training
        return results

    def log_calls(self, values: Sequence[Tensor]) -> list[LogCall]:
        """The step's calls of `self.log` with these values, which `__call__` returned after the loss."""
        logged_values = iter(values)
        return [
            call._replace(value=next(logged_values)) if isinstance(call.value, Slot) else call
            for call in self.recording.logged
        ]


def compile_calls(
    function: Callable[[], Tensor], read: Sequence[Tensor], written: Sequence[Tensor], arena: Arena
) -> Program | None:
    """Runs `function` on a CPU; returns the program of its operator calls, with fixed memory.

    The program gets tensors with the layouts of `read` and `written`, and returns a 1-tuple of the result of
    `function`. None is returned if `function` cannot be recorded, or if the program's bits differ. read: the tensors
    that `function` reads. written: the tensors that it overwrites. arena: the fixed memory.
    """
    inputs = (*read, *written)
    with torch.no_grad(), Tape(inputs) as tape:
        result = function()
    if tape.reason is not None:
        return None
    program = Program(tape.recording(result), (), arena=arena)
    expected = [tensor.clone() for tensor in (result, *written)]
    try:
        (actual,) = program(inputs)
    except RuntimeError:  # an operator does not write into the memory that its `out` variant is given
        return None
    return program if all(map(same_bits, expected, (actual, *written))) else None


def compile_source(listing: str, namespace: dict[str, Any]) -> Callable[..., tuple[Tensor, ...]]:
    """The function `step` of a source text, with `namespace` as the text's global names."""
    exec(compile(listing, "<recorded step>", "exec"), namespace)  # generated here, from no outside text
    step: Callable[..., tuple[Tensor, ...]] = namespace["step"]
    return step
