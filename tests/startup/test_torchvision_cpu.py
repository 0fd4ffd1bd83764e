"""Every claim is tested in its own process, because imports and declarations cannot be undone."""

import subprocess
import sys

import pytest


def python(code: str) -> str:
    """The output of `code`; the test fails with its stderr if the process fails."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_raylfl_is_enough_for_torchvision_and_imports_neither_torch_nor_torchvision(after_torch):
    code = "import raylfl, sys; print({'torch', 'torchvision'} & set(sys.modules) or 'neither')"
    assert python(code) == "neither"
    code = (
        "waiting = lambda: len([f for f in sys.meta_path if 'raylfl' in type(f).__module__]); before = waiting()\n"
        "import torchvision.datasets, torchvision.transforms.v2, torchvision.models\n"
        "print(before, waiting(), torchvision_cpu.declare())"
    )
    assert after_torch(code) == "1 0 False"


def test_the_declaration_imports_no_torchvision(after_torch):
    assert after_torch("torchvision_cpu.declare(); print('torchvision' in sys.modules)") == "False"


def test_existing_operators_are_left_unchanged(after_torch):
    code = (
        "mine = torch.library.Library('torchvision', 'FRAGMENT')\n"
        "mine.define('nms(Tensor boxes) -> Tensor')\n"
        "print(torchvision_cpu.declare(), torch.ops.torchvision.nms.default._schema)"
    )
    assert after_torch(code) == "False torchvision::nms(Tensor boxes) -> Tensor"


def test_a_library_that_loads_its_operators_needs_no_declaration(after_torch):
    code = (
        "mine = torch.library.Library('torchvision', 'FRAGMENT'); loaded = []\n"
        "def load(path):\n"
        "    loaded.append(path); mine.define('nms(Tensor boxes) -> Tensor')\n"
        "torch.ops.load_library = load\n"
        "print(torchvision_cpu.declare(), torchvision_cpu.declare(), len(loaded), '_C' in loaded[0])"
    )
    assert after_torch(code) == "False False 1 True"


@pytest.mark.parametrize("load", ["raise OSError('libcudart.so: cannot open')", "pass"])
def test_both_schemas_are_declared_where_the_library_brings_none(after_torch, load):
    code = (
        f"def load(path):\n    {load}\n"
        "torch.ops.load_library = load\n"
        "found = torchvision_cpu.importlib.util.find_spec\n"
        "torchvision_cpu.importlib.util.find_spec = lambda name: None\n"
        "print('not installed:', torchvision_cpu.declare())\n"
        "torchvision_cpu.importlib.util.find_spec = found\n"
        "print(torchvision_cpu.declare(), torchvision_cpu.declare())\n"
        "print(torch.ops.torchvision.nms.default._schema)\n"
        "print(torch.ops.torchvision.qnms.default._schema)"
    )
    signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    assert after_torch(code).splitlines() == [
        "not installed: False",
        "True False",
        f"torchvision::nms{signature}",
        f"torchvision::qnms{signature}",
    ]


MISSING = "torchvision_cpu.operators_load = lambda: False\n"


def test_after_a_set_up_of_the_environment_lightning_may_be_imported_first(after_torch, tmp_path):
    """`make setup` writes into site-packages; here another folder replaces it."""
    code = (
        "import sysconfig\n" + MISSING + f"sysconfig.get_path = lambda name: {str(tmp_path)!r}\n"
        "print(torchvision_cpu.install_at_start_up())"
    )
    assert after_torch(code) == str(tmp_path / "raylfl-torchvision.pth")
    python(f"import site; site.addsitedir({str(tmp_path)!r}); import torchvision, lightning, raylfl")


def test_nothing_is_written_where_torchvision_works(after_torch, tmp_path):
    code = (
        "import sysconfig\n"
        "torchvision_cpu.operators_load = lambda: True\n"
        f"sysconfig.get_path = lambda name: {str(tmp_path)!r}\n"
        "print(torchvision_cpu.install_at_start_up())"
    )
    assert after_torch(code) == "None"
    assert list(tmp_path.iterdir()) == []


def test_the_set_up_command_warns_of_nothing(tmp_path):
    """Python warns where `-m` runs a module that its own package has imported already."""
    code = (
        f"import runpy, sysconfig, warnings; sysconfig.get_path = lambda name: {str(tmp_path)!r}\n"
        "warnings.simplefilter('error', RuntimeWarning); runpy.run_module('raylfl.startup', run_name='__main__')"
    )
    python(code)
