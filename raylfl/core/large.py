"""Matrices that may be larger than memory: above IN_MEMORY bytes, a matrix is an unnamed file mapped into memory."""

from __future__ import annotations

import mmap
import os
import tempfile

import torch
from torch import Tensor

from raylfl.errors import RaylflError

IN_MEMORY = 2**30  # bytes of the largest matrix that is not a file


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
