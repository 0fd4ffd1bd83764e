"""Units of a call's local steps: the clients that take a step together, and the fixed memory of their parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch, GradientMode, LoopOracle, Oracle, seed_everything
from raylfl.core.slots import Slots, aligned_rows

if TYPE_CHECKING:
    from raylfl.core.vectorized import VectorizedOracle


class Units(ABC):
    """Where the steps of a call happen: its units and their memory.

    params: the parameters [count, d] of at most `count` clients. together: whether all clients form one unit.
    """

    params: Tensor
    count: int
    together: bool
    flat: FlatModule
    ways: Counter[GradientMode]

    @abstractmethod
    def reference(self, rows: slice, content: Any, t: int) -> tuple[Tensor, Tensor]:
        """(losses [n], gradients [n, d]) of the unit of these clients, by autograd.

        content: its batches. t: the number of the local step.
        """

    @abstractmethod
    def state(self, rows: slice) -> list[Tensor]:
        """The tensors in the memory of these clients that a step changes."""

    @abstractmethod
    def release(self) -> None:
        """Frees the memory; later calls allocate memory of the size that they need."""


class LaneOracle(Oracle, Units):
    """Gradients of C clients, one after the other, by autograd; each client's buffers are in a slot of its own."""

    together = False

    def __init__(self, loop: LoopOracle):
        super().__init__()
        self.loop, self.flat, self.steps = loop, loop.flat, loop.steps
        self.slots = Slots(loop.flat, 0)
        self._buffers: Tensor | None = None  # rows [C, b] of the next call

    @property
    def width(self) -> int:
        return self.flat.width

    def workspace(self, count: int) -> Tensor:
        if count > self.slots.count:
            self.slots = Slots(self.flat, -(-count // 8) * 8)
        self.held = self.slots.params
        self.slots.write_buffers(self._buffers, count)
        self._buffers = None
        self.params, self.count = self.slots.params, self.slots.count
        return self.params[:count]

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
            loss, row = self.reference(slice(c, c + 1), batch.content, self.t)
            losses.append(loss)
            rows.append(row)
        self.ways[GradientMode("autograd", self.steps.reason)] += len(batches)
        return torch.cat(losses), torch.cat(rows)

    def reference(self, rows: slice, content: Any, t: int) -> tuple[Tensor, Tensor]:
        with self.slots.slots[rows.start].used():
            self.flat.load(self.flat.params)
            loss, row = self.loop.reference(content, t)
            self.flat.store(self.flat.params)  # a step may change parameters in place
            # an assigned tensor that `take_back_buffers` leaves
            for _, owner, key, buffer in self.flat._buffer_entries:
                now = owner.get(key)
                if now is not None and now is not buffer and now.shape == buffer.shape:
                    buffer.copy_(now.detach())
        return loss[None], row[None]

    def state(self, rows: slice) -> list[Tensor]:
        return self.slots.state(rows)

    def release(self) -> None:
        self.slots = Slots(self.flat, 0)
        self.held = self.params = self.slots.params
        self.count = 0


class Together(Units):
    """The clients of a call as one unit of a vectorised oracle, for a module without buffers."""

    together = True

    def __init__(self, oracle: VectorizedOracle):
        self.oracle, self.flat, self.ways = oracle, oracle.flat, oracle.ways
        self.params, self.count = aligned_rows(0, oracle.width, oracle.flat.params), 0

    def workspace(self, count: int) -> Tensor:
        """Fixed memory [count, d] for the parameters."""
        if count > self.count:
            self.params, self.count = aligned_rows(count, self.oracle.width, self.flat.params), count
        return self.params[:count]

    def reference(self, rows: slice, content: Any, t: int) -> tuple[Tensor, Tensor]:
        content = tuple(part.unflatten(0, (rows.stop - rows.start, -1)) for part in content)
        return self.oracle.plain(self.params[rows], content, t)

    def state(self, rows: slice) -> list[Tensor]:
        return [self.params[rows]]

    def release(self) -> None:
        self.params, self.count = aligned_rows(0, self.oracle.width, self.flat.params), 0
