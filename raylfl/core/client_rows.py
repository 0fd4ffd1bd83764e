"""Table: one row [d] for each client received so far, as a server's memory of updates or momenta."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Table:
    """A map from client to row [d], zero until it is written. It takes memory for written clients only.

    It is the only server state that changes in place: the server step writes the rows of the received clients. Rows
    are kept in the order of their first writing (`clients`, `matrix`).
    """

    def __init__(self, like: Tensor):
        """An empty table; like: a vector [d] with the width, dtype and device of the rows."""
        self._rows = like.new_empty((0, like.numel()))
        self._where: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, client: int) -> bool:
        return int(client) in self._where

    @property
    def clients(self) -> list[int]:
        """The clients written so far, in the order of `matrix`."""
        return list(self._where)

    @property
    def matrix(self) -> Tensor:
        """All rows as a view [n, d]; row k belongs to clients[k]."""
        return self._rows[: len(self._where)]

    def positions(self, clients: npt.ArrayLike) -> Tensor:
        """Row numbers in `matrix` of these clients, int64 [C]. Raises KeyError for a client never written."""
        return torch.tensor([self._where[int(i)] for i in np.asarray(clients)], dtype=torch.int64)

    def rows(self, clients: npt.ArrayLike) -> Tensor:
        """The rows of these clients as a copy [C, d]; zeros for a client never written."""
        ids = [int(i) for i in np.asarray(clients)]
        out = self._rows.new_zeros((len(ids), self._rows.shape[1]))
        for k, client in enumerate(ids):
            if client in self._where:
                out[k] = self._rows[self._where[client]]
        return out

    def write(self, clients: npt.ArrayLike, rows: Tensor) -> None:
        """Sets the rows of these clients to `rows` [C, d]."""
        ids = [int(i) for i in np.asarray(clients)]
        for client in ids:
            self._where.setdefault(client, len(self._where))
        if len(self._where) > len(self._rows):  # grow by half: amortised constant cost, independent of N
            grown = self._rows.new_empty((max(len(self._where), len(self._rows) * 3 // 2), self._rows.shape[1]))
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        self._rows[self.positions(ids).to(self._rows.device)] = rows

    def state_dict(self) -> dict[str, Tensor]:
        """The complete content for a checkpoint: `clients` int64 [n] and `rows` [n, d]."""
        return {"clients": torch.tensor(self.clients, dtype=torch.int64), "rows": self.matrix.clone()}

    @staticmethod
    def from_state(state: dict[str, Tensor]) -> Table:
        """The inverse of `state_dict`."""
        rows = state["rows"]
        table = Table(rows.new_empty(rows.shape[1]))
        table.write(state["clients"].numpy(), rows)
        return table
