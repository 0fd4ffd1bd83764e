"""Locks on files of a run directory; the operating system releases a lock when its process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from raylfl.runtime.records.record_file import open_plain


class Locks:
    """The locks that this process holds in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._held: dict[str, IO[bytes]] = {}

    def take(self, name: str) -> bool:
        """Takes the lock on the file `name`, without waiting; returns whether this process holds it now.

        Raises OSError on a file system without locks.
        """
        if name in self._held:
            return True
        path = self.folder / name
        while True:
            lock = os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b", buffering=0)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if links := _links(lock, path):
                    if links == 1:
                        self._held[name] = lock
                        return True
                    path.unlink()  # the file of a copy (`cp -al`), too: both would have one lock and one text
            except OSError as error:
                lock.close()
                if isinstance(error, BlockingIOError):
                    return False
                raise
            lock.close()

    def note(self, name: str, text: str) -> None:
        """Replaces the content of the lock file `name`, whose lock this process holds, by a text."""
        self._held[name].truncate(0)
        self._held[name].write(text.encode())

    def close(self) -> None:
        """Releases all locks."""
        for lock in self._held.values():
            lock.close()
        self._held.clear()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock on this file; False if there is no file."""
    try:
        with open(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return isinstance(error, BlockingIOError)


def _links(file: IO[bytes], path: Path) -> int:
    """The number of hard links of an open file, at least 1; 0 if it is no longer at this path."""
    opened = os.fstat(file.fileno())
    try:
        return max(1, opened.st_nlink) if os.path.samestat(opened, os.stat(path, follow_symlinks=False)) else 0
    except FileNotFoundError:
        return 0
