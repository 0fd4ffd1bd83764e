"""Slots: fixed memory on a device in which a module computes the local steps of several clients side by side.

A slot has room for one client's parameters (a row of a matrix [C, d]) and buffers. The module itself is moved from slot
to slot: its parameters and buffers are made views of the slot's memory, so that its own `training_step` runs there.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from raylfl.core.cohort import CohortBuffers
from raylfl.core.flat import FlatModule, in_channels_last

ALIGNED = 64  # entries; rows begin at multiples of it, so that kernels are chosen alike in every slot


def aligned_rows(count: int, width: int, like: Tensor) -> Tensor:
    """New memory [count, width] whose rows begin at aligned addresses."""
    padded = -(-width // ALIGNED) * ALIGNED
    return like.new_empty(count, padded)[:, :width]


class Slot:
    """The memory of one client: `params` [d], and the module's weights and buffers as the module uses them.

    weights: one tensor per parameter, a view of `params`, or a copy of it in another memory order (`copies`: pairs of
    the copy and its view). buffers: one tensor per buffer of the module.
    """

    def __init__(self, flat: FlatModule, params: Tensor, buffers: Sequence[Tensor]):
        self.flat, self.params, self.buffers = flat, params, list(buffers)
        self.weights: list[Tensor] = []
        self.copies: list[tuple[Tensor, Tensor]] = []
        for parameter, view in zip(flat.parameters, flat.views(params), strict=True):
            moved = parameter.data.stride() != view.stride() and view.ndim == 4
            self.weights.append(in_channels_last(view).clone() if moved else view)
            if moved:
                self.copies.append((self.weights[-1], view))

    @contextmanager
    def used(self) -> Iterator[None]:
        """A context in which the module's parameters and buffers are those of the slot."""
        flat = self.flat
        module_memory = flat.params, flat._copies, flat._weights, flat.buffers, flat._buffer_entries
        weights = [p.data for p in flat.parameters]
        try:
            self._set(self.weights)
            flat.params, flat._copies, flat._weights = self.params, self.copies, self.weights
            flat.buffers = self.buffers
            flat._buffer_entries = [
                (name, owner, key, buffer)
                for (name, owner, key, _), buffer in zip(flat._buffer_entries, self.buffers, strict=True)
            ]
            for _, owner, key, buffer in flat._buffer_entries:
                owner[key] = buffer
            yield
        finally:
            self._set(weights)
            flat.params, flat._copies, flat._weights, flat.buffers, flat._buffer_entries = module_memory
            for _, owner, key, buffer in flat._buffer_entries:
                owner[key] = buffer

    def _set(self, weights: Sequence[Tensor]) -> None:
        for parameter, weight in zip(self.flat.parameters, weights, strict=True):
            parameter.data = weight


class FixedBuffers(CohortBuffers):
    """The buffers of C clients in fixed memory for `count` clients, one tensor [count, *shape] per buffer: `memory`."""

    def __init__(self, flat: FlatModule, count: int):
        super().__init__(flat)
        self.memory = [
            aligned_rows(count, b.numel(), b).view(count, *b.shape).copy_(b.expand(count, *b.shape))
            for b in flat.initial_buffers
        ]

    def write(self, rows: Tensor) -> None:
        self.held = [memory[: len(rows)] for memory in self.memory]
        for held, values in zip(self.held, self._entries(rows), strict=True):
            held.copy_(values)
