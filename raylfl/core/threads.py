"""Threads: server computations on several cores, and BLAS limited to one thread.

A computation is cut into pieces that depend on the problem only, and one thread computes each piece. The bits are
therefore the same for any number of cores.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

P = TypeVar("P")
R = TypeVar("R")
MOST = 8  # threads: memory bandwidth limits the gain of more


def on_all_cores(work: Callable[[P], R], pieces: Iterable[P]) -> list[R]:
    """The results [work(piece), ...], computed in parallel; for kernels that release the GIL."""
    pieces, count = list(pieces), min(cores(), MOST)
    if min(len(pieces), count) < 2:
        return list(map(work, pieces))
    return list(_threads(os.getpid(), count).map(work, pieces))


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """The thread pool of this process; keyed by the process id, because a fork has none of its parent's threads."""
    return ThreadPoolExecutor(count, "raylfl", initializer=limit_threads, initargs=(1,))


def limit_threads(count: int) -> None:
    """Sets torch's number of threads for computations that this thread starts.

    At a thread's first computation, torch gives it the number that any thread of the process set last, even if this
    thread has set its own before. Reading the number counts as a first computation and therefore comes first.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """A context that limits torch, BLAS and LAPACK to one thread.

    Their sums depend on the number of threads, and OpenBLAS threads occupy their cores for 100 ms after each call. The
    limit applies to the libraries loaded so far: import a library with a BLAS of its own (scipy) first.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _pools(loaded_libraries()).limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=1)
def _pools(libraries: object) -> ThreadpoolController:
    """The thread pools of the BLAS and OpenMP libraries in the process.

    libraries: a key of the loaded libraries; a new key, which may mean another BLAS, starts a new search (1 ms).
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def loaded_libraries() -> object:
    """A key of the loaded shared libraries: the loader's counts of libraries loaded and unloaded so far (5 us).

    Where the loader has no such counts (not on Linux), each call returns a different key.
    """
    counts: list[tuple[int, int]] = []

    def note(library: Any, size: int, data: object) -> int:
        counts.append((library.contents.loaded, library.contents.unloaded))
        return 1  # the first library is enough: each entry holds the counts of all

    if (iterate := _loader()) is None:
        return object()
    iterate(_Visitor(note), None)
    return counts[0]


@cache
def _loader() -> Any:
    return getattr(ctypes.CDLL(None), "dl_iterate_phdr", None) if sys.platform == "linux" else None


class _Library(ctypes.Structure):
    """The ctypes form of `struct dl_phdr_info` in link.h, which describes a loaded library."""

    _fields_ = [
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("loaded", ctypes.c_ulonglong),
        ("unloaded", ctypes.c_ulonglong),
    ]


_Visitor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)
