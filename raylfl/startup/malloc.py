"""Malloc settings with which the process keeps freed memory for the next local step.

By default glibc returns large blocks to the operating system as soon as they are freed. The next step then gets new
pages, each with a page fault, which takes much of the time of small convolutional networks on a CPU
(`python -m benchmarks.startup` counts faults and time). RAYLFL_KEEP_MEMORY=0 switches the settings off. They apply to
the command line and the actors; a program that only imports raylfl is not affected.

They need mallopt(3) of glibc on Linux; its constants are part of glibc's stable interface.
"""

import ctypes
import sys

from raylfl.startup import is_enabled

SWITCH = "RAYLFL_KEEP_MEMORY"
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers in glibc's malloc.h
LARGEST = 32 * 2**20  # bytes of a block; the largest value that malloc accepts for this threshold
SPARE = 256 * 2**20  # bytes of free memory at the end of the heap


def keep() -> None:
    """Makes malloc take blocks of up to 32 MiB from the heap, and keep up to 256 MiB of free memory there.

    It sets M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt(3); no effect if the C library has no mallopt, or if the
    setting is off.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" and is_enabled(SWITCH) else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, SPARE)
