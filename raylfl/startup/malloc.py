"""Memory that local steps free is kept by the process and used again by the next step.

glibc returns large blocks to the operating system as soon as they are freed. The blocks of the next step are new pages,
each with a page fault at its first access, which small convolutional networks on a CPU spend much time on
(`python -m benchmarks.startup` counts faults and time). RAYLFL_KEEP_MEMORY=0 switches it off. It applies to the command
line and the actors; a program that only imports raylfl is not affected.

It needs mallopt(3) of glibc on Linux, whose constants are part of its stable interface.
"""

from __future__ import annotations

import ctypes
import sys

from raylfl.startup import enabled

SWITCH = "RAYLFL_KEEP_MEMORY"
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers in glibc's malloc.h
LARGEST = 32 * 2**20  # bytes of a block; the largest value that malloc accepts for this threshold
SPARE = 256 * 2**20  # bytes of free memory at the end of the heap


def keep() -> None:
    """Serve blocks of up to 32 MB from the heap (M_MMAP_THRESHOLD, mallopt(3)) and let it keep 256 MB of free memory
    (M_TRIM_THRESHOLD). No effect if the C library has no mallopt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" and enabled(SWITCH) else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, SPARE)
