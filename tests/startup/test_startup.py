"""Lightning loads without the rest of torchmetrics and torch's compiler, until they are used; memory is kept.

Each setting of raylfl/startup can be switched off.
"""

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from raylfl.startup import SEEN
from tests.startup.conftest import advice
from tests.startup.forks import forks_after, python

ROOT = Path(__file__).parents[2]
LEAN = "from raylfl.startup import lazy_imports; lazy_imports.install(); import sys, lightning.pytorch as pl\n"
HEAVY = (
    "[m for m in ('torchvision', 'scipy.signal', 'matplotlib', 'torchmetrics.functional', 'torch._dynamo', 'sympy') "
    "if m in sys.modules]"
)


@pytest.fixture(scope="module")
def lean(tmp_path_factory):
    """`lean(code)`: the output of code in a process that has run LEAN."""
    with forks_after(LEAN, tmp_path_factory.mktemp("lean")) as python:
        yield python


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """`bare(code)`: the output of code in a process that has imported `sys` only."""
    with forks_after("import sys\n", tmp_path_factory.mktemp("bare")) as python:
        yield python


def test_lightning_loads_without_what_it_does_not_need(lean):
    code = (
        "import torch, torch.nn as nn\n"
        "class Net(pl.LightningModule):\n"
        "    def __init__(self):\n        super().__init__(); self.body = nn.Linear(2, 2)\n"
        f"Net(); print({HEAVY}, any('lazy_imports' in type(f).__module__ for f in sys.meta_path))"
    )
    assert lean(code) == "[] False"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import raylfl; dir(raylfl)", "torch numpy pandas ray"),
        ("import raylfl.pytest_plugin", "torch numpy ray"),
        ("import raylfl.report.runs", "torch ray matplotlib"),
        (
            "from raylfl.tune.spec import check_settings, load_sweep\n"
            "sweep = load_sweep('digits_lr'); check_settings(sweep, sweep.points())",
            "ray",
        ),
        (
            "import numpy, raylfl.report.participation_plot; from raylfl.report.partition_plot import figure\n"
            "figure(numpy.eye(3, dtype=int)).savefig('/dev/null')",
            "matplotlib.pyplot",
        ),
    ],
    ids=["interface", "contracts", "reading runs", "reading a sweep", "drawing"],
)
def test_what_needs_no_heavy_library_imports_none(bare, lean, code, absent):
    python = lean if absent in ("ray", "matplotlib.pyplot") else bare
    assert python(f"{code}\nprint([name for name in {absent.split()} if name in sys.modules])") == "[]"


def test_the_rest_loads_on_first_use_and_metrics_can_be_plotted(lean):
    code = (
        "import torchmetrics; from torchmetrics import Metric, MetricCollection\n"
        "before = 'torchmetrics.functional' in sys.modules, 'matplotlib' in sys.modules\n"
        "accuracy = torchmetrics.Accuracy(task='binary')\n"
        "import torch; accuracy.update(torch.tensor([1, 0]), torch.tensor([1, 1]))\n"
        "from lightning.pytorch.core.module import Metric as theirs\n"
        "print(before, float(accuracy.compute()), isinstance(accuracy, Metric))\n"
        "print(Metric is theirs is torchmetrics.Metric)\n"
        "missing = [n for n in torchmetrics.__all__ if not hasattr(torchmetrics, n)]\n"
        "print(missing, hasattr(torchmetrics, 'no_such_thing'), torchmetrics.__version__[:2])\n"
        "for metric in (torchmetrics.MeanMetric(), MetricCollection({'mean': torchmetrics.MeanMetric()})):\n"
        "    metric.update(2.0); drawn = metric.plot()\n"
        "    figure, axes = drawn[0] if isinstance(drawn, list) else drawn\n"
        "    print(type(figure).__name__, len(axes.lines) + len(axes.collections) > 0)"
    )
    first = ["(False, False) 0.5 True", "True", "[] False 1."]
    assert lean(code).splitlines() == [*first, *["Figure True"] * 2]


def test_a_part_may_be_the_first_thing_that_is_imported(after_torch):
    """An example is a process without Lightning that unpickles a metric."""
    alone = LEAN.splitlines()[0].split("; import sys")[0] + "\n"
    assert after_torch(alone + "from torchmetrics.classification import MulticlassAccuracy; print('fine')") == "fine"


def test_a_version_with_another_layout_is_imported_completely(after_torch):
    code = LEAN.replace(
        "lazy_imports.install()", "lazy_imports.NEEDED['Metric'] = 'torchmetrics.elsewhere'; lazy_imports.install()"
    )
    assert after_torch(
        code + "import torchmetrics; print(torchmetrics.Metric, 'torchmetrics.functional' in sys.modules)"
    ) == ("<class 'torchmetrics.metric.Metric'> True")


def test_what_was_imported_before_stays_as_it_is(after_torch):
    code = (
        "from types import ModuleType; from raylfl.startup import lazy_imports\n"
        "sys.modules['torchmetrics'] = mine = ModuleType('torchmetrics'); lazy_imports.install()\n"
        "import torchmetrics\n"
        "print(torchmetrics is mine, any('lazy_imports' in type(f).__module__ for f in sys.meta_path))"
    )
    assert after_torch(code) == "True False"


@pytest.mark.exhaustive
def test_lightning_is_complete_and_needs_nothing_else_of_the_compiler(after_torch):
    """The names of its modules and their content, compared with a plain import of Lightning."""
    names = (
        "import sys, lightning.pytorch; print(sorted((m, sorted(vars(sys.modules[m]))) for m in list(sys.modules) "
        "if m.split('.')[0] == 'lightning'))"
    )
    spy = (
        "import sys\nclass Spy:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        assert not name.startswith('torch._dynamo'), name\n"
        "sys.meta_path.insert(0, Spy())\n"
    )
    lean = after_torch("from raylfl.startup import lazy_imports; lazy_imports.install()\n" + spy + names)
    assert lean == after_torch("import raylfl\n" + names)


def test_a_compiled_module_is_known_as_one(lean):
    code = (
        "import torch, lightning; from lightning.pytorch.utilities.compile import from_compiled, to_uncompiled\n"
        "from lightning.fabric.wrappers import OptimizedModule\n"
        "class Net(pl.LightningModule):\n    pass\n"
        "net = Net(); before = isinstance(net, OptimizedModule), 'torch._dynamo' in sys.modules\n"
        "compiled = torch.compile(net); print(*before, isinstance(compiled, OptimizedModule))\n"
        "print(isinstance(net, OptimizedModule), to_uncompiled(from_compiled(compiled)) is net)\n"
        "import inspect; print(len(inspect.getsource(lightning)) > 100, lightning.__spec__.name)"
    )
    assert lean(code).splitlines() == ["False False True", "False True", "True lightning"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("more", ["from torch._dynamo.utils import counters", "import torch; torch._dynamo.reset()"])
def test_a_use_of_other_parts_of_the_compiler_during_the_import_loads_the_compiler(after_torch, more):
    """A Lightning with another layout would do so; here after a part that needs only the stand-in."""
    code = (
        "from importlib.machinery import SourceFileLoader; from raylfl.startup import lazy_imports; import sys\n"
        "lazy_imports.install()\n"
        "execute = SourceFileLoader.exec_module\n"
        "def also(self, module):\n"
        "    execute(self, module)\n"
        f"    if module.__name__ == 'lightning.fabric.wrappers':\n        exec({more!r}, {{}})\n"
        "SourceFileLoader.exec_module = also\n"
        "import torch, lightning.pytorch as pl, torch._dynamo.utils as utils\n"
        "from lightning.fabric.wrappers import OptimizedModule\n"
        "known = isinstance(torch.compile(pl.LightningModule()), OptimizedModule)\n"
        "print(sys.modules['torch._dynamo'] is torch._dynamo, torch._dynamo.utils is utils, known)\n"
        "ours = any('lazy_imports' in type(f).__module__ for f in sys.meta_path)\n"
        "print(utils.__spec__.loader.__class__.__name__, ours)"
    )
    assert after_torch(code).splitlines() == ["True True True", "SourceFileLoader False"]


def test_a_mistake_in_what_lightning_imports_is_raised_as_it_is(after_torch):
    code = (
        "from raylfl.startup import lazy_imports; import sys; lazy_imports.install()\n"
        "sys.modules['lightning_utilities'] = None\n"
        "try:\n    import lightning\n"
        "except ImportError as error:\n    print(error.name.split('.')[0], 'torch._dynamo' in sys.modules)"
    )
    assert after_torch(code) == "lightning_utilities False"


# -- switches and memory ----------------------------------------------------------------------------------------------


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


CHECKING = """
import sys
from raylfl.startup.process import set_up
set_up()
from raylfl.config.load import load_config
from raylfl.execution.planned import prepare
prepare(load_config("digits", ["runtime.backend=local"]))
print({"sympy", "torch._dynamo"} & set(sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [RECORDING, CHECKING], ids=["recording", "the check before a run"])
def test_recording_and_probe_steps_import_no_compiler(after_torch, script):
    assert after_torch(script) == "set()"
