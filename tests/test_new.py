"""`raylfl new`: its files pass their tests, have the package's style, and never replace a file."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from raylfl.cli import main
from raylfl.cli.listing import kind_of
from raylfl.cli.new import KINDS, module_of, new
from raylfl.components.registry import import_class
from raylfl.config.load import load_config

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {"algorithm": "algorithms", "partition": "partitions", "link": "links", "model": "models"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_passes_at_once(here, kind):
    name = f"Brand{kind.title()}"
    assert main(["new", kind, name]) == 0
    module = module_of(name)
    tests = import_class(f"test_{module}.__dict__", "test")
    passed = 0
    for title, test in [(title, test) for title, test in tests.items() if title.startswith("test_")]:
        marks = getattr(test, "pytestmark", [])
        cases = [{mark.args[0]: value} for mark in marks for value in mark.args[1]] or [{}]
        for case in cases:
            takes = (
                {"tmp_path": here / title}
                if "tmp_path" in test.__code__.co_varnames[: test.__code__.co_argcount]
                else {}
            )
            test(**case, **takes)
            passed += 1
    assert passed >= 2
    assert kind_of(import_class(f"{module}.{name}", kind)) == GROUPS.get(kind, kind)
    assert load_config(f"{module}.yaml").resolved[kind]["class_path"] == f"{module}.{name}"


def test_the_first_line_of_the_yaml_runs(here):
    assert main(["new", "algorithm", "FedNew", "-o", str(here)]) == 0
    command = shlex.split((here / "fednew.yaml").read_text().splitlines()[0].removeprefix("# raylfl "))
    assert main([*command, "rounds=1", "runtime.backend=local", "logging.report=false"]) == 0


def test_files_are_styled(here):
    for kind in KINDS:
        new(kind, f"Styled{kind.title()}", here)
    style = ["--isolated", "--line-length", "120"]  # without a project
    for arguments in (["check", "--select", "E,F,I,UP,B,SIM,RET"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *arguments, *style, "."], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("algorithm fedcm", "the name of a class is needed, such as FedCM"),
        ("algorithm Fed-CM", "the name of a class is needed"),
        ("algorithm Json", "its file would hide the existing module json"),
        ("optimiser FedCM", "new optimiser: there are templates of algorithm, data,"),
        ("job FedCM", "new job takes no NAME"),
        ("model", "new model needs a NAME, such as FedCM"),
    ],
)
def test_bad_names_are_refused(here, capsys, arguments, words):
    assert main(["new", *arguments.split()]) == 2
    assert words in capsys.readouterr().err
    assert not list(here.iterdir())


def test_a_file_that_exists_is_never_replaced(here, capsys):
    (here / "test_fedcm.py").write_text("mine")
    assert main(["new", "algorithm", "FedCM"]) == 2
    assert "test_fedcm.py exists: nothing was written" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["test_fedcm.py"]
    assert (here / "test_fedcm.py").read_text() == "mine"


def test_the_files_of_jobs_are_those_of_the_repository(here, capsys):
    assert main(["new", "job"]) == 0
    assert capsys.readouterr().out.startswith("written  jobs/cluster.yaml\nwritten  jobs/runtime_env.yaml\n")
    written, shipped = ({path.name: path.read_bytes() for path in (top / "jobs").iterdir()} for top in (here, ROOT))
    assert written == shipped
    assert set(written) == {"cluster.yaml", "runtime_env.yaml", "slurm.sh"}
    (here / "jobs" / "cluster.yaml").unlink()
    assert main(["new", "job"]) == 2
    assert "jobs/runtime_env.yaml, jobs/slurm.sh exists: nothing was written" in capsys.readouterr().err
    assert not (here / "jobs" / "cluster.yaml").exists()


def test_names_of_classes_become_names_of_modules():
    names = {"FedCM": "fedcm", "TwoSided": "two_sided", "Net2Wide": "net2_wide", "MIFA": "mifa"}
    assert {name: module_of(name) for name in names} == names
