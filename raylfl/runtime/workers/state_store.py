"""A store of client states on the disk of a cluster node; each file has the states of a range of clients.

The store is used if each client is assigned to a worker, which has its samples and keeps its state.

Each client has two slots in a file. A slot stores a version (the number of rounds of the run after which the client had
this state) and the state as bytes. One slot has the state from which the local work starts; the new state overwrites
the other slot. The state before a round is therefore kept until the client's next round: local work can be repeated,
also by another process on the node, and a checkpoint can be written during the next round. If a process is killed
while it writes a slot, only this slot is lost: it has no version.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from raylfl.core.algorithm import State
from raylfl.core.samples import as_tensor
from raylfl.errors import RaylflError

BLOCK_BYTES = 64 * 2**20  # largest size of a file, unless a single client needs more
ALIGNED = 64  # bytes to which versions and tensors are padded
NOTHING = 0  # the version of an empty slot, because unwritten parts of a file read as zeros


class HeldState(NamedTuple):
    """The handle of a client state that is stored by the worker to which the client is assigned.

    rounds: the number of rounds of the run after which the client has this state.
    """

    client: int
    rounds: int


class StatesLost(RaylflError):
    """Raised if a stored client state was lost with its node; the run must continue from its newest checkpoint."""


class StateStore:
    """The states of the clients that are assigned to one worker, in files in a folder."""

    def __init__(self, folder: Path, fresh: State):
        """A store in this folder.

        fresh: a client's state before its first round, rows [1, ...]; all states have its names, shapes and dtypes.
        """
        self.folder = folder
        self.fields: dict[str, tuple[tuple[int, ...], np.dtype, int]] = {}  # name -> (shape, dtype, offset)
        self.bytes = 0
        for name, rows in sorted(fresh.items()):
            values = rows.cpu().numpy()
            self.fields[name] = values.shape, values.dtype, self.bytes
            self.bytes += math.ceil(values.nbytes / ALIGNED) * ALIGNED
        self.slot = ALIGNED + self.bytes
        self.clients = max(1, BLOCK_BYTES // (2 * self.slot))  # clients in one file

    def read(self, held: HeldState) -> State:
        """Reads the state of a handle, rows [1, ...]. Raises StatesLost if it is not in the store."""
        try:
            with self._open(held.client, create=False) as (file, at):
                for slot in (0, 1):
                    if _version(file, at + slot * self.slot) == held.rounds:
                        data = bytearray(self.bytes)
                        file.readinto(data)
                        return {
                            name: as_tensor(np.ndarray(shape, dtype, data, offset))
                            for name, (shape, dtype, offset) in self.fields.items()
                        }
        except FileNotFoundError:
            pass
        raise StatesLost(f"the state of client {held.client} after round {held.rounds - 1} was lost with its node")

    def write(self, held: HeldState, state: State, started: int | None = None) -> None:
        """Stores a new state of a client.

        started: the version from which the local work started, whose slot is kept; None if it started from the initial
        state. Raises RaylflError if the state has another form than `fresh`, or cannot be written.
        """
        rows = {name: value.contiguous().cpu().numpy() for name, value in state.items()}
        forms = {name: (values.shape, values.dtype) for name, values in rows.items()}
        if forms != {name: field[:2] for name, field in self.fields.items()}:
            raise RaylflError(
                f"the new state of client {held.client} holds {_shown(forms)}, but must have the names, shapes and "
                f"dtypes of init_clients (runtime.placement=shared keeps any state)"
            )
        try:
            with self._open(held.client, create=True) as (file, at):
                at += self.slot * (started is not None and _version(file, at) == started)
                self._put(file, at, NOTHING.to_bytes(8, "little"))
                for name, values in rows.items():
                    self._put(file, at + ALIGNED + self.fields[name][2], values.reshape(-1).view(np.uint8).data)
                self._put(file, at, held.rounds.to_bytes(8, "little"))
        except OSError as error:
            raise RaylflError(
                f"client states cannot be written to {self.folder} ({error.strerror}): make room there, or set "
                "RAY_TMPDIR to another folder before Ray starts"
            ) from error

    def joined(self, held: list[HeldState]) -> State:
        """Reads the states of these handles as rows [C, ...]. Raises StatesLost if one is not in the store."""
        states = [self.read(one) for one in held]
        return {name: torch.cat([state[name] for state in states]) for name in self.fields}

    def _put(self, file: BufferedRandom, at: int, data: bytes | memoryview) -> None:
        file.seek(at)
        file.write(data)
        file.flush()

    @contextmanager
    def _open(self, client: int, create: bool) -> Iterator[tuple[BufferedRandom, int]]:
        """A context with (the file that has this client's slots, the offset of the client's first slot in bytes)."""
        path = self.folder / f"block_{client // self.clients:09d}"
        if create:
            self.folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT * create, 0o600), "r+b") as file:
            yield file, client % self.clients * 2 * self.slot


def discard_others(folder: Path, prefix: str) -> None:
    """Deletes the states of earlier server processes of the run: folders beside `folder` with this name prefix."""
    for other in folder.parent.glob(f"{prefix}*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


def _version(file: BufferedRandom, at: int) -> int:
    """The version in the slot at this offset; moves the position of `file` to the slot's state."""
    file.seek(at)
    return int.from_bytes(file.read(ALIGNED)[:8], "little")


def _shown(forms: dict[str, tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{name} {dtype} {list(shape)}" for name, (shape, dtype) in forms.items()) or "nothing"
