"""Gradients of clients side by side on a GPU: each client in memory of its own, by its own step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raylfl.core.oracle import Batch, GradientMode, LoopOracle, Oracle, seed_everything
from raylfl.core.slots import Slots, aligned_rows


class LaneOracle(Oracle):
    """Gradients of C clients, one after the other, by autograd; each client's parameters and buffers are in a slot.

    In `LaneSteps` each client is a unit of its own. params, gradient_rows: the parameters and gradients [count, d] of
    at most `count` clients.
    """

    together = False
    slots: Slots
    params: Tensor
    gradient_rows: Tensor
    count: int

    def __init__(self, loop: LoopOracle):
        super().__init__()
        self.loop, self.flat, self.steps = loop, loop.flat, loop.steps
        self._allocate(0)
        self._buffers: Tensor | None = None  # rows [C, b] of the next call

    @property
    def width(self) -> int:
        return self.flat.width

    def workspace(self, count: int) -> Tensor:
        if count > self.count:
            self._allocate(-(-count // 8) * 8)
        self.slots.write_buffers(self._buffers, count)
        self._buffers = None
        return self.params[:count]

    def _allocate(self, count: int) -> None:
        self.slots, self.count = Slots(self.flat, count), count
        self.held = self.params = self.slots.params
        self.gradient_rows = aligned_rows(count, self.width, self.params)

    def write_buffers(self, rows: Tensor) -> None:
        """Sets the buffers of the C clients of the next call, from rows [C, b]."""
        self._buffers, self._count = rows, len(rows)

    def read_buffers(self) -> Tensor:
        """The buffers of all C clients after the last call, one vector each [C, b]."""
        return self.slots.read_buffers(self._count)

    def changed_buffers(self) -> list[str]:
        """The names of the buffers that do not travel and that the last call has changed."""
        return self.slots.changed_buffers()

    def reorder(self, order: np.ndarray) -> None:
        permutation = torch.from_numpy(order).to(self.flat.params.device)
        if self._buffers is not None:
            self._buffers = self._buffers[permutation]
        else:
            self.slots.reorder(permutation)

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        losses, rows = [], []
        for c, batch in enumerate(batches):
            if self.lanes is not None:
                self.lanes.restore()
            seed_everything(seeds(c))
            loss, row = self.take(slice(c, c + 1), batch.content, self.t)
            losses.append(loss)
            rows.append(row.clone())
        self.ways[GradientMode("autograd", self.steps.reason)] += len(batches)
        return torch.cat(losses), torch.cat(rows)

    def take(self, rows: slice, content: Any, t: int) -> tuple[Tensor, Tensor]:
        """(losses [1], gradients [1, d]) of the client of `rows`, by autograd, for its batch `content`.

        The gradients are in `gradient_rows`. t: the number of the local step.
        """
        with self.slots.slots[rows.start].used():
            self.flat.load(self.flat.params)
            loss, row = self.loop.reference(content, t, self.gradient_rows[rows.start])
            self.flat.store(self.flat.params)  # a step may change parameters in place
            # an assigned tensor that `take_back_buffers` leaves
            for _, owner, key, buffer in self.flat._buffer_entries:
                now = owner.get(key)
                if now is not None and now is not buffer and now.shape == buffer.shape:
                    buffer.copy_(now.detach())
        return loss[None], row[None]

    def state(self, rows: slice) -> list[Tensor]:
        """The tensors in the memory of these clients that a step changes."""
        return self.slots.state(rows)

    def release(self) -> None:
        """Frees the memory; later calls allocate memory of the size that they need."""
        self._allocate(0)
