"""Tables with one row [d] per client, in which a server keeps the clients' last updates or momenta."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raylfl.core.chunked_matrix import as_matrix, columns, spans
from raylfl.core.threads import on_all_cores
from raylfl.errors import RaylflError

IN_MEMORY = 2**30  # bytes of the largest matrix that is not a file


class Table:
    """A map from client to row [d]; a row is 0 until it is first written, and takes memory only from then on.

    It is the only server state that is changed in place: the server step writes the rows of the received clients. Rows
    are stored in the order of their first writes (`clients`, `matrix`); a very large matrix is stored in a file
    (`empty_matrix`).
    """

    def __init__(self, like: Tensor):
        """An empty table for rows with the width, dtype and device of the vector `like` [d]."""
        self._rows = like.new_empty((0, like.numel()))
        self._where: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, client: int) -> bool:
        return int(client) in self._where

    def __reduce__(self) -> tuple[Callable[[dict[str, Tensor]], Table], tuple[dict[str, Tensor]]]:
        return Table.from_state, (self.state_dict(),)

    @property
    def clients(self) -> list[int]:
        """The clients written so far, in the order of `matrix`."""
        return list(self._where)

    @property
    def matrix(self) -> Tensor:
        """All rows as a view [n, d]; row k belongs to clients[k]."""
        return self._rows[: len(self._where)]

    def positions(self, clients: npt.ArrayLike) -> Tensor:
        """The row numbers of these clients in `matrix`, int64 [C]. Raises KeyError for a client never written."""
        return torch.tensor([self._where[int(i)] for i in np.asarray(clients)], dtype=torch.int64)

    def view(self, clients: npt.ArrayLike) -> Tensor:
        """The rows of these clients [C, d]; zeros for a client never written.

        The result may share memory with the table: use it before the table's next write.
        """
        nothing = self._rows.new_zeros(1, 1).expand(1, self._rows.shape[1])
        positions = [self._where.get(int(i)) for i in np.asarray(clients)]
        return as_matrix([nothing if k is None else self._rows[k : k + 1] for k in positions] or [nothing[:0]])

    def rows(self, clients: npt.ArrayLike) -> Tensor:
        """The rows of these clients as a copy [C, d]; zeros for a client never written."""
        return columns(self.view(clients), slice(None))

    def write(self, clients: npt.ArrayLike, rows: Tensor) -> None:
        """Sets the rows of these clients to copies of `rows` [C, d]."""
        self._set(clients, rows, lambda span: columns(rows, span))

    def change(self, clients: npt.ArrayLike, step: Callable[[Tensor, Tensor], Tensor], rows: Tensor) -> None:
        """Sets the rows of these clients to step(old rows, rows) [C, d], computed on blocks of columns.

        Column j of the result must depend on column j of the two arguments only.
        """
        old = self.view(clients)
        self._set(clients, rows, lambda span: step(columns(old, span), columns(rows, span)))

    def _set(self, clients: npt.ArrayLike, like: Tensor, values: Callable[[slice], Tensor]) -> None:
        """Sets the rows of these clients to values(span) [C, *] in blocks of columns `span` of the matrix `like`."""
        ids = [int(i) for i in np.asarray(clients)]
        if not ids:
            return
        for client in ids:
            self._where.setdefault(client, len(self._where))
        if len(self._where) > len(old := self._rows):  # at least half as many again, for a constant mean cost of a row
            self._rows = empty_matrix(max(len(self._where), len(old) * 3 // 2), old.shape[1], old)
            self._rows[: len(old)] = old
        positions = self.positions(ids).to(self._rows.device)

        def block(span: slice) -> None:
            self._rows[positions, span] = values(span)

        on_all_cores(block, spans(like))

    def state_dict(self) -> dict[str, Tensor]:
        """The content for a checkpoint: `clients`, int64 [n], and `rows` [n, d], a view valid until the next write."""
        rows = self.matrix
        if rows.device.type == "cpu":  # without the spare rows, which would be saved with a view
            rows = torch.from_numpy(rows.numpy())
        return {"clients": torch.tensor(self.clients, dtype=torch.int64), "rows": rows}

    @staticmethod
    def from_state(state: dict[str, Tensor]) -> Table:
        """A new table with this content: the inverse of `state_dict`."""
        rows = state["rows"]
        table = Table(rows.new_empty(rows.shape[1]))
        table.write(state["clients"].numpy(), rows)
        return table


def empty_matrix(rows: int, width: int, like: Tensor) -> Tensor:
    """An uninitialised matrix [rows, width] with the dtype and device of `like`.

    A large matrix on the CPU is a file in the temporary folder (TMPDIR). The system loads and saves parts of the file
    as needed, and removes the file when the tensor is freed. Raises RaylflError if the folder has too little space.
    """
    size = rows * width * like.element_size()
    if size <= IN_MEMORY or like.device.type != "cpu":
        return like.new_empty(rows, width)
    try:
        with tempfile.TemporaryFile(prefix="raylfl-rows-") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            memory = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise RaylflError(
            f"a matrix of {rows} vectors, {size / 2**30:.1f} GiB, does not fit into {tempfile.gettempdir()} "
            f"({error.strerror}): set TMPDIR to a folder with more room"
        ) from error
    return torch.frombuffer(memory, dtype=like.dtype).view(rows, width)
