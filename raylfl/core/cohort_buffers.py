"""The module's buffers (BatchNorm statistics) of C clients, as one tensor [C, *shape] per buffer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from raylfl.core.flat import FlatModule, same_entries

Rows = slice | list[int]  # positions of clients in the cohort


class CohortBuffers:
    """The buffers of C clients between their local steps; empty for a module without buffers.

    Each tensor [C, *shape] is contiguous, because kernels such as batch normalisation change it in place.
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
