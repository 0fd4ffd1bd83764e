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


LATE = """
import os; os.environ["OPENBLAS_NUM_THREADS"] = "2"
from raylfl.solvers import simplex
from raylfl.core.threads import one_thread
from threadpoolctl import threadpool_info
def pools(): return {lib["filepath"]: lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}
others = [f"other{k}" for k in range(3000)]
sys.modules.update(dict.fromkeys(others, os))
with one_thread(): before, count = pools(), len(sys.modules)
solve, seen = simplex._Problem.solution, []
simplex._Problem.solution = lambda problem: seen.append(pools()) or solve(problem)
late = "scipy.linalg" not in sys.modules
import scipy.linalg
while len(sys.modules) > count: del sys.modules[others.pop()]
simplex.min_norm_point(torch.eye(3, dtype=torch.float64))
after = {threads for path, threads in pools().items() if path not in before}
print(late, len(seen[0]) > len(before), len(sys.modules) == count, set(seen[0].values()), after)
"""


@pytest.mark.slow
def test_libraries_that_a_solver_loads_late_have_one_thread(after_torch):
    """scipy has its own BLAS, whose sums depend on its threads, and whose threads occupy the workers' cores.

    As many modules are removed as scipy adds, so that their number does not reveal the new BLAS.
    """
    assert after_torch(LATE) == "True True True {1} {2}"


RECORDING = """
import warnings; warnings.simplefilter("error", UserWarning)
from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.core.vectorized import VectorizedOracle
from tests.core.user_modules import Residual

flat = FlatModule(Residual(), torch.float32, torch.device("cpu"))
oracle = VectorizedOracle(flat)
oracle.steps.seen = 1
for _ in range(5):
    oracle.gradients(flat.params.repeat(2, 1), [Batch(flat.module.batch(4), 4)] * 2, lambda c: 0)
alone = LoopOracle(flat).steps
for _ in range(2):
    alone.take(flat.module.batch(4))
for steps in (oracle.steps, alone):
    assert [kind.program is not None for kind in steps.kinds.values()] == [True], steps.refusal
print({"sympy", "torch._dynamo"} & set(sys.modules))
"""


@pytest.mark.slow
def test_recording_imports_no_compiler(after_torch):
    assert after_torch(RECORDING) == "set()"
