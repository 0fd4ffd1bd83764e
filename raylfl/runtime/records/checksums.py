"""Checksums of files, computed while a file is written or from a file on disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from raylfl.runtime.records.record_file import open_plain


class _HashedFile:
    """A writable file that computes the sha256 of the bytes written to it."""

    def __init__(self, file: Any):
        self.file, self.sha256 = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        """Writes the bytes and adds them to the checksum."""
        self.sha256.update(data)
        written: int = self.file.write(data)
        return written

    def flush(self) -> None:
        self.file.flush()


def save_hashed(content: Any, path: Path) -> str:
    """Saves an object to `path` with torch.save and syncs the file to disk; returns the sha256 of the file."""
    with open(path, "wb") as file:
        hashed = _HashedFile(file)
        try:
            torch.save(content, hashed)  # type: ignore[arg-type]
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # a full disk; torch raises its own error for it
                raise error.__context__ from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return hashed.sha256.hexdigest()


def sha256_of(path: Path) -> str:
    """The sha256 of a file. Raises OSError for anything but a regular file."""
    with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
