"""What a process of raylfl's own frees stays with it, and serves the next local step.

glibc gives large blocks back to the system as soon as they are freed; those of the next step are fresh pages, each
with a fault at its first touch. For convolutional networks on a CPU that was a quarter of the round (130,000 faults
for 24 local steps of the benchmarks' W2). For the command line and the actors; a program that only imports raylfl is
left alone.
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them
LARGEST = 32 * 2**20  # bytes of a block; malloc takes no more for this threshold
SPARE = 256 * 2**20  # bytes at the end of the heap that may lie idle


def keep() -> None:
    """Serve blocks of up to 32 MB from the heap (M_MMAP_THRESHOLD, mallopt(3)) and let it keep 256 MB of free memory
    (M_TRIM_THRESHOLD); nothing where the C library has no mallopt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, SPARE)
