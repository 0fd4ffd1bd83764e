"""Slots: fixed memory on a device in which a module computes the local steps of several clients side by side.

A slot has room for one client's parameters (a row of a matrix [C, d]) and buffers. The module itself is moved from slot
to slot: its parameters and buffers are made views of the slot's memory, so that its own `training_step` runs there.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from raylfl.core.flat import FlatModule, in_channels_last, same_entries

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


class Slots:
    """The slots of `count` clients: `params` [count, d], and buffers as one matrix per dtype."""

    def __init__(self, flat: FlatModule, count: int):
        self.flat, self.count, self._used = flat, count, 0
        self.params = aligned_rows(count, flat.width, flat.params)
        self._matrices: dict[torch.dtype, Tensor] = {}
        self._buffers = self._views()  # one tensor [count, *shape] per buffer
        self.slots = [Slot(flat, self.params[c], [rows[c] for rows in self._buffers]) for c in range(count)]

    def _views(self) -> list[Tensor]:
        """One tensor [count, *shape] per buffer, a view of the matrix of its dtype."""
        widths: dict[torch.dtype, int] = {}
        offsets = []
        for b in self.flat.buffers:
            offsets.append(widths.get(b.dtype, 0))
            widths[b.dtype] = offsets[-1] + b.numel()
        for dtype, width in widths.items():
            self._matrices[dtype] = aligned_rows(self.count, width, self.flat.params.new_empty(0, dtype=dtype))
        return [
            self._matrices[b.dtype][:, start : start + b.numel()].view(self.count, *b.shape)
            for b, start in zip(self.flat.buffers, offsets, strict=True)
        ]

    def write_buffers(self, rows: Tensor | None, count: int) -> None:
        """Sets the buffers of the first `count` slots: from rows [count, b] if they travel, otherwise as at first.

        rows: None sets all buffers to their initial entries.
        """
        self._used = count
        travelling = iter(() if rows is None else self.flat.packing.split(rows))
        for held, first, travels in zip(self._buffers, self.flat._initial, self.flat.sent, strict=True):
            held[:count].copy_(next(travelling) if travels and rows is not None else first)

    def read_buffers(self, count: int) -> Tensor:
        """The buffers that travel, of the first `count` slots, as rows [count, b]."""
        sent = [held[:count] for held, travels in zip(self._buffers, self.flat.sent, strict=True) if travels]
        return self.flat.packing.rows(sent, count)

    def changed_buffers(self) -> list[str]:
        """The names of the buffers that do not travel and that differ from their initial entries in any used slot."""
        each = zip(self.flat.buffer_names, self._buffers, self.flat._initial, self.flat.sent, strict=True)
        used = self._used
        return [name for name, held, first, sent in each if not (sent or same_entries(held[:used], first))]

    def reorder(self, order: Tensor) -> None:
        """Reorders the buffers of the first slots: slot k gets the buffers of slot order[k]."""
        for matrix in self._matrices.values():
            matrix[: len(order)] = matrix[order]

    def state(self, rows: slice) -> list[Tensor]:
        """The tensors of these slots that a local step changes."""
        return [self.params[rows], *(matrix[rows] for matrix in self._matrices.values())]
