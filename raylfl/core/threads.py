"""Threads: server computations on several cores, and BLAS limited to one thread.

A computation is cut into pieces, each computed by one thread. The pieces, and therefore the bits of the result, do not
depend on the number of cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

P = TypeVar("P")
R = TypeVar("R")
MOST = 8  # largest number of threads; memory bandwidth limits the gain of more


def on_all_cores(work: Callable[[P], R], pieces: Iterable[P]) -> list[R]:
    """The results [work(piece), ...] in order, computed by several threads; for work that releases the GIL."""
    pieces, count = list(pieces), min(cores(), MOST)
    if min(len(pieces), count) < 2:
        return list(map(work, pieces))
    return list(_threads(os.getpid(), count).map(work, pieces))


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """The pool of `count` threads of the process with this id; a forked process has no threads and gets a new pool."""
    return ThreadPoolExecutor(count, "raylfl", initializer=limit_threads, initargs=(1,))


def limit_threads(count: int) -> None:
    """Sets torch's number of threads for computations that the calling thread starts.

    Torch initialises the number at a thread's first computation, and would then overwrite a number that the thread has
    set before. The function therefore reads the number first, which counts as a computation.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """A context that limits torch, BLAS and LAPACK to one thread.

    The bits of their sums depend on the number of threads, and idle OpenBLAS threads occupy their cores for 100 ms
    after each call. The limit applies to the libraries loaded so far: import a package with its own BLAS (scipy) first.
    """
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _pools(len(sys.modules), next(reversed(sys.modules))).limit(limits=1):
            yield
    finally:
        torch.set_num_threads(count)


@lru_cache(maxsize=1)
def _pools(modules: int, newest: str) -> ThreadpoolController:
    """The thread pools of the BLAS and OpenMP libraries in the process.

    The search takes 1 ms, and is repeated only after an import: for other numbers of modules or another newest one.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
