"""The local steps of a call as an argument and a result, and the fixed memory in which they happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from raylfl.core.arrays import Ints
from raylfl.core.local_rule import LocalRule
from raylfl.core.local_step import Observer
from raylfl.core.oracle import Batch
from raylfl.core.samples import BatchSource, EvenBatches, IndexedBatch
from raylfl.core.slots import aligned_rows

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm, State
    from raylfl.core.local_optimizer import LocalOptimizer


class LocalCall(NamedTuple):
    """The local steps of C clients, sorted by falling numbers of steps; an argument of `LaneSteps.run`.

    batches, seeds, algorithm, rule, optimizer: as in `run_local`. x [C, d], inner [C, m], carry [C, ...]: the starting
    points, optimizer states and first carry. ids: the clients' numbers, the arguments of `batches` and `seeds`. steps:
    the numbers of local steps [C]. actives, rates: the number of clients that take each step, and its learning rate.
    measure_drift: as in `run_local`.
    """

    algorithm: Algorithm
    rule: LocalRule
    optimizer: LocalOptimizer
    batches: Callable[[int, Sequence[int]], Sequence[Batch]]
    seeds: Callable[[int, int], int]
    x: Tensor
    inner: Tensor
    carry: State
    ids: list[int]
    steps: list[int]
    actives: list[int]
    rates: list[float]
    measure_drift: bool
    observer: Observer


class LocalSteps(NamedTuple):
    """The results of `LaneSteps.run`.

    inner, carry: after each client's last step. losses: for each step, the losses of the clients that took it. samples:
    the sizes of their batches. drift: as in `Tally`.
    """

    inner: Tensor
    carry: State
    losses: list[Tensor]
    samples: list[list[int]]
    drift: Tensor


class Memory:
    """The fixed memory of a call's local steps besides parameters and buffers; entries of dicts are [C, ...] by name.

    table: the sample indices [C, T, B] of T steps; counters: each client's number of steps so far [C]; rates [T], whose
    first entries are `rate_values`; losses, logged values: [C, T].
    """

    def __init__(self, call: LocalCall, count: int, steps: int, size: int):
        x = call.x
        self.count, self.steps, self.size = count, steps, size
        self.inner = aligned_rows(count, call.inner.shape[1], x)
        self.carry = {
            name: aligned_rows(count, rows[0].numel(), rows).view(count, *rows.shape[1:])
            for name, rows in call.carry.items()
        }
        self.table = torch.zeros(count, steps, size, dtype=torch.int64, device=x.device)
        self.counters = torch.zeros(count, dtype=torch.int64, device=x.device)
        self.rates, self.rate_values = x.new_zeros(steps), list[float]()
        self.losses = x.new_zeros(count, steps)
        self.logged: dict[str, Tensor] = {}
        self.drift = torch.zeros(count, dtype=torch.float64, device=x.device)

    def fits(self, call: LocalCall, steps: int, size: int) -> bool:
        """Whether the memory has room for this call."""
        same = self.carry.keys() == call.carry.keys() and self.inner.shape[1] == call.inner.shape[1]
        return same and len(call.x) <= self.count and steps <= self.steps and size <= self.size

    def state(self, rows: slice) -> list[Tensor]:
        """The tensors of these clients that a local step changes."""
        held = [self.inner, *self.carry.values(), self.losses, self.counters, self.drift, *self.logged.values()]
        return [tensor[rows] for tensor in held]


def indices_of(batches: Sequence[Sequence[Batch]]) -> tuple[BatchSource | None, list[Sequence[Ints]]]:
    """(source, sample indices of each step and client) if graphs can gather the batches by index; else (None, []).

    The indices of a step are one array [C, B] if they are so in `batches`.
    """
    indices: list[Sequence[Ints]] = []
    source: BatchSource | None = None
    for step in batches:
        row: Sequence[Ints]
        if isinstance(step, EvenBatches):
            row, sources = cast("Sequence[Ints]", step.indices), [step.source]
        else:
            indexed = [batch for batch in step if isinstance(batch, IndexedBatch)]
            if len(indexed) < len(step):
                return None, []
            row, sources = [batch.indices for batch in indexed], [batch.source for batch in indexed]
        source = source or sources[0]
        if not source.plain or any(each is not source for each in sources):
            return None, []
        numbers = source.samples.row_numbers
        indices.append(numbers(row) if isinstance(row, np.ndarray) else [numbers(samples) for samples in row])
    return source, indices


def round_up(need: int, least: int) -> int:
    """A power of two that is at least `need` and `least`, so that memory rarely has to grow."""
    return 1 << (max(need, least, 1) - 1).bit_length()
