"""Settings of raylfl/startup: each can be switched off; freed memory stays with the process."""

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from raylfl.startup import SEEN
from tests.startup.conftest import advice
from tests.startup.forks import python

ROOT = Path(__file__).parents[2]


def test_lightning_is_imported_unchanged_if_that_is_switched_off(monkeypatch):
    monkeypatch.setenv("RAYLFL_LAZY_IMPORTS", "0")
    code = "import sys; before = list(sys.meta_path); from raylfl.startup import process; process.set_up()\n"
    code += "print([f for f in sys.meta_path if f not in before])"
    assert python(code) == "[]"


@pytest.mark.parametrize("name", SEEN)
def test_the_pinned_versions_are_the_seen_ones(name):
    """After a new pin, run these tests and `python -m benchmarks.startup`, then update SEEN."""
    pinned = re.search(rf"^{name}==(.+)$", (ROOT / "requirements.txt").read_text(), re.M)
    assert pinned, f"{name} is not pinned"
    assert pinned[1].startswith(f"{SEEN[name]}."), advice({other: version(other) for other in SEEN} | {name: pinned[1]})


def test_a_failure_names_versions_and_remedy():
    text = advice(dict.fromkeys(SEEN, "99.0"))
    assert "torchmetrics 99.0, last tested with 1.9" in text
    assert "RAYLFL_LAZY_IMPORTS=0" in text


def test_every_switch_is_documented():
    code = "\n".join(path.read_text() for path in (ROOT / "raylfl/startup").glob("*.py"))
    page = (ROOT / "docs/placement.md").read_text()
    assert [name for name in set(re.findall(r'"(RAYLFL_\w+)"', code)) if name not in page] == []


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
def test_steps_take_the_memory_of_the_steps_before_unless_switched_off(after_torch):
    pages = 10 * 20 * 4 * 2**20 // 4096
    assert int(after_torch(STEPS.format(keep=""))) > pages / 2
    assert int(after_torch(STEPS.format(keep="malloc.keep()"))) < pages / 20
    off = "import os; os.environ['RAYLFL_KEEP_MEMORY'] = '0'; malloc.keep()"
    assert int(after_torch(STEPS.format(keep=off))) > pages / 2
