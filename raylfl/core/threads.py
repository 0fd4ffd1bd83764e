"""The pieces of one computation on several cores; for the server, whose workers have nothing to do meanwhile.

Which pieces there are follows from the problem alone, and each is computed by one thread: the bits are the same on any
number of cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, lru_cache
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

P = TypeVar("P")
R = TypeVar("R")
MOST = 8  # threads: memory gives no more


def on_all_cores(work: Callable[[P], R], pieces: Iterable[P]) -> list[R]:
    """[work(piece), ...]; for kernels that leave Python alone meanwhile."""
    pieces, count = list(pieces), min(cores(), MOST)
    if min(len(pieces), count) < 2:
        return list(map(work, pieces))
    return list(_threads(os.getpid(), count).map(work, pieces))


def cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Those of this process: a fork has none of its parent's."""
    return ThreadPoolExecutor(count, "raylfl", initializer=torch.set_num_threads, initargs=(1,))


def one_thread() -> AbstractContextManager[object]:
    """BLAS and LAPACK within on one thread: their sums depend on how many there are, and OpenBLAS's helpers spin for
    100 ms after a call, on the cores of whoever works next.

    For the libraries loaded so far: import those that bring their own (scipy) before.
    """
    return _pools(len(sys.modules)).limit(limits=1)


@lru_cache(maxsize=1)
def _pools(modules: int) -> ThreadpoolController:
    """Those of the process once it has imported so many modules; 0.3 ms."""
    return ThreadpoolController()
