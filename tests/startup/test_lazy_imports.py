"""Lightning without the rest of torchmetrics and torch's compiler; both load on first use."""

import pytest

from tests.startup.forks import forks_after

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
