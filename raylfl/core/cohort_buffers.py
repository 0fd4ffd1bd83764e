"""The module's buffers (BatchNorm statistics) of C clients, as one tensor [C, *shape] per buffer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raylfl.core.flat import FlatModule

Rows = slice | list[int]  # positions of clients in the cohort


class CohortBuffers:
    """The buffers of C clients between their local steps; empty for a module without buffers.

    Each tensor [C, *shape] is contiguous, because kernels such as batch normalisation change it in place.
    """

    def __init__(self, flat: FlatModule):
        self.like, self.dtype = flat.buffers, flat.params.dtype
        self.held: list[Tensor] = []

    def write(self, rows: Tensor) -> None:
        """Sets the buffers from rows [C, b]; a row holds all entries of a client's buffers, one after the other.

        The buffers have the order of `FlatModule.read_buffers`. Entries of integer buffers are rounded.
        """
        self.held = []
        for piece, b in zip(rows.split([b.numel() for b in self.like], dim=1), self.like, strict=True):
            values = (piece if b.is_floating_point() else piece.round()).reshape(len(rows), *b.shape)
            self.held.append(values.to(b.dtype).clone(memory_format=torch.contiguous_format))

    def read(self) -> Tensor:
        """The buffers as rows [C, b] in the parameters' dtype; integers become floats."""
        return torch.cat([b.reshape(len(b), -1).to(self.dtype) for b in self.held], dim=1)

    def fill(self, count: int) -> None:
        """Stores `count` copies of the module's buffers if buffers of fewer than `count` clients are stored."""
        if len(self.like) and (not self.held or len(self.held[0]) < count):
            self.held = [b.detach().expand(count, *b.shape).clone() for b in self.like]

    def of(self, rows: Rows) -> list[Tensor]:
        """The buffers of the clients `rows`, [len(rows), *shape] each: views for a slice, copies for a list."""
        return [b[rows] for b in self.held]

    def keep(self, rows: Rows, after: Sequence[Tensor]) -> None:
        """Stores the buffers `after` of the clients `rows`: the tensors that `of` returned, changed by a step.

        For a slice it does nothing, because `of` returned views.
        """
        if isinstance(rows, list):
            for held, new in zip(self.held, after, strict=True):
                held[rows] = new

    def reorder(self, order: Tensor) -> None:
        """Reorders the rows of all buffers: row k becomes the former row order[k]."""
        self.held = [b[order] for b in self.held]
