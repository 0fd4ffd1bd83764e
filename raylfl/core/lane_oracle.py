"""Gradients of clients side by side on a GPU: each client in memory of its own, by its own step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from raylfl.core.cohort import CohortOracle
from raylfl.core.oracle import Batch, GradientMode, LoopOracle, seed_everything
from raylfl.core.slots import FixedBuffers, Slot, aligned_rows


class LaneOracle(CohortOracle):
    """Gradients of C clients, one after the other, by autograd; each client's parameters and buffers are in a slot.

    In `LaneSteps` each client is a unit of its own. gradient_rows: the gradients [count, d] of at most `count` clients.
    """

    together = False
    buffers: FixedBuffers

    def __init__(self, loop: LoopOracle):
        super().__init__(loop.flat)
        self.loop, self.steps = loop, loop.steps
        self._allocate(0)

    def workspace(self, count: int) -> Tensor:
        if count > self.count:
            self._allocate(-(-count // 8) * 8)
        return self.params[:count]

    def _allocate(self, count: int) -> None:
        self.count, self.buffers = count, FixedBuffers(self.flat, count)
        self.held = self.params = aligned_rows(count, self.width, self.flat.params)
        self.gradient_rows = aligned_rows(count, self.width, self.params)
        memory = self.buffers.memory
        self.slots = [Slot(self.flat, x, [held[c] for held in memory]) for c, x in enumerate(self.params)]

    def write_buffers(self, rows: Tensor) -> None:
        self.workspace(len(rows))
        super().write_buffers(rows)

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
        with self.slots[rows.start].used():
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
        return [self.params[rows], *(memory[rows] for memory in self.buffers.memory)]

    def release(self) -> None:
        self._allocate(0)
