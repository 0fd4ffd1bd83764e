"""A record file to which a run appends, and checks that detect its change, move or deletion by others."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raylfl.errors import RaylflError

EMPTY = hashlib.sha256().hexdigest()


class Displaced(RaylflError):
    """Raised if a run directory, or a file in it, was deleted, moved or replaced while a run wrote to it."""


@dataclass(frozen=True)
class Prefix:
    """The first `size` bytes of a record file and their sha256."""

    size: int = 0
    sha256: str = EMPTY

    @staticmethod
    def of(data: bytes) -> Prefix:
        return Prefix(len(data), hashlib.sha256(data).hexdigest())


class RecordFile:
    """A record file (metrics.jsonl, participation.jsonl, topology.jsonl), open for appending."""

    def __init__(self, path: Path):
        self.path = path
        self.file = os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b", buffering=0)
        content = self.file.read()
        self.size, self._sha256 = len(content), hashlib.sha256(content)

    @property
    def prefix(self) -> Prefix:
        """Size and sha256 of the content at opening and of all appended bytes."""
        return Prefix(self.size, self._sha256.hexdigest())

    def append(self, data: bytes) -> None:
        """Appends bytes without buffering. Raises OSError on a full disk; the file is then unchanged."""
        rest = data
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError:
            with suppress(OSError):
                self.file.truncate(self.size)
            raise
        self.size += len(data)
        self._sha256.update(data)

    def check(self) -> None:
        """Checks that the open file is still at its path and has the known `size`; raises Displaced otherwise."""
        opened = os.fstat(self.file.fileno())
        try:
            on_disk = os.stat(self.path, follow_symlinks=False)
            changed = not os.path.samestat(opened, on_disk) or opened.st_size != self.size
        except FileNotFoundError:
            changed = True
        if changed:
            raise Displaced(
                f"{self.path} was changed while the run wrote to it: raylfl resume {self.path.parent} "
                "computes the affected rounds again"
            )

    def sync(self) -> None:
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


def open_plain(path: Path, flags: int) -> int:
    """Opens a regular file with these flags of os.open; returns its file descriptor.

    Raises OSError for a link, a pipe or a device.
    """
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle
