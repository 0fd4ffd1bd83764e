"""Freed memory stays with the process: the next step reuses it without a page fault."""

import sys

import pytest

STEPS = """
import ctypes, resource
import torch
from raylfl.startup import malloc

c = ctypes.CDLL(None)
c.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages of 4 KB, whatever this system does by itself
c.mallopt(malloc.MMAP_THRESHOLD, 128 * 1024)  # what malloc starts with; it may have moved since
{keep}

def step():  # activations of 4 MB each, all of them freed at its end
    return [torch.ones(2**20) for _ in range(20)] and None

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.set_num_threads(1)
for _ in range(3):
    step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_steps_take_the_memory_of_the_steps_before(after_torch) -> None:
    pages = 10 * 20 * 4 * 2**20 // 4096
    assert int(after_torch(STEPS.format(keep=""))) > pages / 2
    assert int(after_torch(STEPS.format(keep="malloc.keep()"))) < pages / 20
