"""Oracles of clients with buffers of their own, and a vectorised call that is compared with the reference step."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylfl.core.flat import FlatModule, same_entries
from raylfl.core.oracle import Oracle, seed_everything
from raylfl.core.reference import ReferenceStep
from raylfl.replay.innermost.step import Innermost
from raylfl.replay.proof import Outcome, compare
from raylfl.replay.step_log import StepLog

Rows = slice | list[int]  # positions of clients in the cohort


class CohortBuffers:
    """The module's buffers of C clients between their local steps, one tensor [C, *shape] per buffer: `held`.

    Each tensor is contiguous, because kernels such as batch normalisation change it in place.
    """

    def __init__(self, flat: FlatModule):
        self.flat = flat
        self.held: list[Tensor] = []

    def write(self, rows: Tensor) -> None:
        """Sets the buffers that travel from rows [C, b] (`Packing`); all others get their initial entries."""
        self.held = [values.clone(memory_format=torch.contiguous_format) for values in self._entries(rows)]

    def _entries(self, rows: Tensor) -> Iterator[Tensor]:
        travelling = iter(self.flat.packing.split(rows))
        for initial, sent in zip(self.flat.initial_buffers, self.flat.sent, strict=True):
            yield next(travelling) if sent else initial.expand(len(rows), *initial.shape)

    def read(self) -> Tensor:
        """The buffers that travel as rows [C, b]."""
        travelling = [b for b, sent in zip(self.held, self.flat.sent, strict=True) if sent]
        return self.flat.packing.rows(travelling, len(self.held[0]) if self.held else 0)

    def fill(self, count: int) -> None:
        """Stores `count` copies of the module's buffers if buffers of fewer than `count` clients are stored."""
        if self.flat.buffers and (not self.held or len(self.held[0]) < count):
            self.write(self.flat.read_buffers().expand(count, -1))

    def of(self, rows: Rows) -> list[Tensor]:
        """The buffers of the clients `rows`, [len(rows), *shape] each: views for a slice, copies for a list."""
        return [b[rows] for b in self.held]

    def keep(self, rows: Rows, buffers: Sequence[Tensor]) -> None:
        """Stores the buffers of the clients `rows`: the tensors that `of` returned, changed by a step.

        For a slice it does nothing, because `of` returned views.
        """
        if isinstance(rows, list):
            for held, new in zip(self.held, buffers, strict=True):
                held[rows] = new

    def changed_names(self) -> list[str]:
        """The names of the buffers that do not travel and that a client has changed."""
        flat = self.flat
        each = zip(flat.buffer_names, self.held, flat.initial_buffers, flat.sent, strict=True)
        return [name for name, held, initial, sent in each if not (sent or same_entries(held, initial))]

    def reorder(self, order: Tensor) -> None:
        """Reorders the rows of all buffers: row k becomes the former row order[k]."""
        for held in self.held:
            held[: len(order)] = held[order]


class CohortOracle(Oracle):
    """An oracle of clients that have buffers of their own (`buffers`), and whose local steps `LaneSteps` can take.

    together: whether all clients of a call are one unit, which takes its steps together; otherwise each is one. params:
    fixed memory for the parameters [count, d] of at most `count` clients.
    """

    together: ClassVar[bool]
    buffers: CohortBuffers
    params: Tensor
    count = 0

    def __init__(self, flat: FlatModule):
        super().__init__()
        self.flat = flat

    @property
    def width(self) -> int:
        return self.flat.width

    def write_buffers(self, rows: Tensor) -> None:
        """Sets the buffers of the C clients for the next calls; a row of `rows` [C, b] holds one client's buffers."""
        self.buffers.write(rows)

    def read_buffers(self) -> Tensor:
        """The buffers of all C clients after the last call, one vector each [C, b]."""
        return self.buffers.read()

    def changed_buffers(self) -> list[str]:
        """The names of the buffers that do not travel and that the last call has changed."""
        return self.buffers.changed_names()

    def reorder(self, order: np.ndarray) -> None:
        self.buffers.reorder(torch.from_numpy(order).to(self.flat.params.device))

    @abstractmethod
    def take(self, rows: slice, content: Any, t: int) -> tuple[Tensor, Tensor]:
        """(losses [n], gradients [n, d]) of the n clients `rows` in `params`, by autograd; t: the local step's number.

        content: the batch of a unit, the batches of its clients one after the other.
        """

    @abstractmethod
    def state(self, rows: slice) -> list[Tensor]:
        """The fixed memory of these clients that a step changes."""

    @abstractmethod
    def release(self) -> None:
        """Frees the fixed memory; later calls allocate what they need."""


class CohortCall(NamedTuple):
    """A call of C clients, to be compared.

    x: parameters [C, d]. content: batches [C, B, ...]. buffers_before, buffers_after: [C, *shape]. losses: [C]. g:
    gradients [C, d]. logged: values [C] by name. sizes: of filled-up batches. step: the translation by which the call
    was computed, if any.
    """

    x: Tensor
    content: tuple[Tensor, ...]
    buffers_before: Sequence[Tensor]
    seed: int
    losses: Tensor
    g: Tensor
    buffers_after: Sequence[Tensor]
    logged: dict[str, Tensor]
    sizes: Sequence[int] = ()
    step: Innermost | None = None

    def outcome(self, k: int, names: Sequence[str]) -> Outcome:
        """What the call has computed for client k. names: of the buffers."""
        changed = dict(zip(names, [b[k] for b in self.buffers_after], strict=True))
        return Outcome(self.losses[k], self.g[k], sorted((n, v[k]) for n, v in self.logged.items()), changed)


def compare_client(
    call: CohortCall,
    k: int,
    reference: ReferenceStep,
    log: StepLog,
    t: int,
    again: Callable[[CohortCall, Tensor], CohortCall],
) -> str | None:
    """What differs between client k of a call and the reference step, and by how much; None if nothing differs.

    log: receives what the reference logs. t: the number of the local step. again: gives the call at other parameters
    [C, d].
    """
    flat, names = reference.flat, reference.flat.buffer_names
    alone = partial(_alone, call, k, reference, log, t, call.seed)

    def together(x: Tensor) -> Outcome:
        rows = call.x.clone()
        rows[k] = x
        return again(call, rows).outcome(k, names)

    pieces = dict(zip(flat.names, flat.sizes, strict=True))
    return compare(alone, call.x[k], call.outcome(k, names), pieces, reference.eps, together)


def seeds_itself(call: CohortCall, reference: ReferenceStep, log: StepLog, t: int) -> bool:
    """Whether the reference step of the first client leaves torch's generator in one state for two seeds."""
    states = []
    for seed in (call.seed, call.seed + 1):
        _alone(call, 0, reference, log, t, seed, call.x[0])
        states.append(torch.get_rng_state())
    return torch.equal(*states)


def _alone(call: CohortCall, k: int, reference: ReferenceStep, log: StepLog, t: int, seed: int, x: Tensor) -> Outcome:
    """The outcome of the reference step of client k of a call at the parameters x [d], with this seed."""
    size = call.sizes[k] if len(call.sizes) else call.content[0].shape[1]
    for b, value in zip(reference.flat.buffers, call.buffers_before, strict=True):
        b.copy_(value[k])
    seed_everything(seed)
    return reference.outcome(x, tuple(part[k][:size] for part in call.content), t, log)
