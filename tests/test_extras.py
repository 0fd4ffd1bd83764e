"""Optional libraries: a missing one is an error with the pip command if it is needed, and has no effect otherwise."""

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from raylfl.cli import main
from raylfl.components.extras import EXTRAS, PACKAGES, REQUIRED, install_command
from tests.startup.forks import LEAN, forks_after

ROOT = Path(__file__).parents[1]
OPTIONAL = sorted(module for modules in EXTRAS.values() for module in modules)
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
for name in [name for name in sys.modules if name.partition(".")[0] in {blocked!r}]:
    del sys.modules[name]
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """`without(blocked, code)`: the output lines of code in a process in which these modules cannot be imported."""
    with forks_after(LEAN + "import torch, lightning.pytorch\n", tmp_path_factory.mktemp("without")) as python:
        yield lambda blocked, code: python(BLOCK.format(blocked=list(blocked)) + code).splitlines()


def test_core_and_algorithms_need_torch_numpy_lightning_omegaconf_and_pydantic_only(without):
    blocked = {*OPTIONAL, *REQUIRED} - {"torch", "numpy", "lightning", "torchmetrics", "omegaconf", "yaml", "pydantic"}
    rooms = "raylfl.core.local, raylfl.core.vectorized, raylfl.heterogeneity.participation, raylfl.testing"
    code = f"import raylfl, {rooms}\nfrom raylfl.algorithms import ALGORITHMS\nprint(len(list(ALGORITHMS)))"
    # torchmetrics and yaml come with lightning and omegaconf, and so does rich, for tables that lightning prints
    assert int(without(blocked - {"rich"}, code)[-1]) >= 26


def test_a_comparison_in_one_process_needs_no_ray(without, tmp_path):
    argv = ["compare", "ridge", "-a", "focus,fedavg", "rounds=1", f"logging.dir={tmp_path}", "runtime.backend=local"]
    argv += ["--jobs", "1", "logging.report=false"]
    undrawn = "from raylfl.report.style import Drawing\nfrom tests.undrawn import savefig\nDrawing.savefig = savefig\n"
    without({"ray", *EXTRAS["tune"]}, f"from raylfl.cli import main\n{undrawn}assert main({argv!r}) == 0")
    assert len(list(tmp_path.glob("ridge/*/final.pt"))) == 2


def test_a_run_in_one_process_needs_no_extra(without, tmp_path):
    argv = ["run", "ridge", "rounds=2", f"logging.dir={tmp_path}", "runtime.backend=local"]
    lines = without(OPTIONAL, f"from raylfl.cli import main\nassert main({argv!r}) == 0")
    assert any("the report (logging.report) needs the package matplotlib" in line for line in lines)
    assert len(list(tmp_path.glob("ridge/*/final.pt"))) == 1


@pytest.mark.parametrize(
    ("module", "argv", "what"),
    [
        ("ray", "run digits", "runtime.backend=ray"),
        ("sklearn", "run digits runtime.backend=local", "data.name=digits"),
        ("matplotlib", "compare digits -a fedavg,sfl", "the report of a comparison"),
        ("jinja2", "report runs", "raylfl report"),
        ("matplotlib", "partition digits", "the figure of raylfl partition"),
        ("matplotlib", "trace digits", "the figure of raylfl trace"),
        ("matplotlib", "reproduce focus/fig4", "raylfl reproduce"),
        ("wandb", "run ridge logging.loggers=wandb", "logging.loggers=wandb"),
        ("tensorboard", "run ridge logging.loggers=tensorboard", "logging.loggers=tensorboard"),
        ("pyarrow", "sweep digits_lr", "raylfl sweep"),
    ],
)
def test_a_missing_extra_ends_in_the_command_that_installs_it(monkeypatch, tmp_path, capsys, module, argv, what):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(argv.split()) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"raylfl: {what} needs the package {module}: {install_command(module)}")
    assert list(tmp_path.iterdir()) == []


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {*EXTRAS, "all", "docs", "dev"} == {*extras}
    assert extras["all"] == [f"raylfl[{','.join(EXTRAS)}]"]
    assert {extra: shlex.split(line) for extra, line in PACKAGES.items()} == {extra: extras[extra] for extra in EXTRAS}
    assert install_command("sklearn.datasets") == "pip install 'scikit-learn>=1.6' 'pillow>=10'"
    assert install_command("torch") == "pip install torch"


def test_no_command_names_raylfl_which_is_in_no_package_index():
    assert [module for module in (*REQUIRED, *OPTIONAL) if "raylfl" in install_command(module)] == []
