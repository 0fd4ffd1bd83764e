"""Files whose checksum is known as they are written, and found again as they are read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from raylfl.runtime.records.record_file import open_plain


class _HashedFile:
    """A file to write to that keeps the sha256 of what went through it."""

    def __init__(self, file: Any):
        self.file, self.sha256 = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def save_hashed(content: Any, path: Path) -> str:
    """torch.save to `path`, synced; its sha256."""
    with open(path, "wb") as file:
        hashed = _HashedFile(file)
        try:
            torch.save(content, hashed)  # type: ignore[arg-type]
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # a full disk, hidden by what torch's writer makes of it
                raise error.__context__ from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return hashed.sha256.hexdigest()


def sha256_of(path: Path) -> str:
    with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
