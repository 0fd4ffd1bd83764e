"""The buffers of C clients, and their vectorised call, one of whose clients is compared with the reference step."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from raylfl.core.flat import FlatModule, same_entries
from raylfl.core.oracle import seed_everything
from raylfl.core.reference import ReferenceStep
from raylfl.replay.innermost.step import Innermost
from raylfl.replay.proof import Outcome, compare
from raylfl.replay.step_log import StepLog

Rows = slice | list[int]  # positions of clients in the cohort


class CohortBuffers:
    """The module's buffers of C clients between their local steps, one tensor [C, *shape] per buffer.

    Each tensor is contiguous, because kernels such as batch normalisation change it in place.
    """

    def __init__(self, flat: FlatModule):
        self.like, self.sent, self.packing, self.names = flat.buffers, flat.sent, flat.packing, flat.buffer_names
        self.held: list[Tensor] = []

    def write(self, rows: Tensor) -> None:
        """Sets the buffers that travel from rows [C, b] (`Packing`); all others get the module's entries."""
        travelling = iter(self.packing.split(rows))
        self.held = [
            self._contiguous(next(travelling) if sent else b.detach().expand(len(rows), *b.shape))
            for b, sent in zip(self.like, self.sent, strict=True)
        ]

    @staticmethod
    def _contiguous(values: Tensor) -> Tensor:
        return values.clone(memory_format=torch.contiguous_format)

    def read(self) -> Tensor:
        """The buffers that travel as rows [C, b]."""
        travelling = [b for b, sent in zip(self.held, self.sent, strict=True) if sent]
        return self.packing.rows(travelling, len(self.held[0]) if self.held else 0)

    def fill(self, count: int) -> None:
        """Stores `count` copies of the module's buffers if buffers of fewer than `count` clients are stored."""
        if len(self.like) and (not self.held or len(self.held[0]) < count):
            self.held = [self._contiguous(b.detach().expand(count, *b.shape)) for b in self.like]

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
        each = zip(self.names, self.held, self.like, self.sent, strict=True)
        return [name for name, held, b, sent in each if not (sent or same_entries(held, b))]

    def reorder(self, order: Tensor) -> None:
        """Reorders the rows of all buffers: row k becomes the former row order[k]."""
        self.held = [b[order] for b in self.held]


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
