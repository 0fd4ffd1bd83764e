"""Components are listed, and names are found, without importing torch."""

import pytest

from raylfl.components.registry import first_line
from raylfl.config.registries import KINDS, REGISTRIES
from tests.startup.forks import forks_after

HEAVY = ("torch", "ray", "lightning", "torchvision", "torchmetrics", "sklearn", "matplotlib", "pandas")


@pytest.mark.parametrize("group", REGISTRIES)
def test_the_source_agrees_with_the_class(group):
    for entry in REGISTRIES[group]:
        assert entry.summary == first_line(entry.cls.__doc__)
        assert REGISTRIES[group].name_of(entry.cls) == entry.name


COMMAND = """
os.chdir({folder!r})
try:
    status = main({argv!r})
except SystemExit as end:
    status = end.code
print("ENDED", status, *[name for name in {heavy!r} if name in sys.modules])
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """`command(*argv)`: (exit status, output, heavy modules that were imported) of a command in its own process."""
    folder = tmp_path_factory.mktemp("commands")
    first = "import os, sys; from raylfl.cli import main\nsys.path[0] = ''\nmain(['run', 'digitz'])\n"
    with forks_after(first, folder) as python:

        def call(*argv, first=""):
            out = python(
                "sys.stderr = sys.stdout\n" + first + COMMAND.format(folder=str(folder), argv=argv, heavy=HEAVY)
            )
            said, _, end = out.rpartition("ENDED ")
            status, *imported = end.split()
            return status, said, imported

        yield call


NAMES = [("run", "digitz"), ("sweep", "digits_lrr"), ("resume", "nowhere")]
LISTS = [(), ("--help",), ("run", "--help"), ("list",)]


@pytest.mark.parametrize(("argv", "code"), [(argv, "2") for argv in NAMES] + [(argv, "0") for argv in LISTS], ids=str)
def test_lists_and_unknown_names_import_nothing_heavy(command, argv, code):
    status, said, imported = command(*argv)
    assert (status, imported) == (code if argv else status, [])
    assert "Traceback" not in said


def test_a_list_of_any_kind_imports_nothing_heavy(command):
    """All in one process; what is listed: tests/test_cli.py."""
    *before, last = KINDS
    first = "".join(f"main({['list', kind]!r})\n" for kind in before)
    status, said, imported = command("list", last, first=first)
    assert (status, imported) == ("0", [])
    assert "Traceback" not in said


def test_only_classes_of_its_package_are_registered():
    with pytest.raises(ValueError, match=r"Mine is not in raylfl.algorithms: class_path selects it"):
        REGISTRIES["algorithm"].register("mine")(type("Mine", (), {"__module__": "mine"}))
