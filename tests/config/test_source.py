"""Registrations read from source agree with the imported classes; mistakes are found without importing torch."""

import pytest

from raylfl.components import source
from raylfl.config.registries import KINDS, REGISTRIES
from tests.startup.forks import forks_after

HEAVY = ("torch", "ray", "lightning", "torchvision", "torchmetrics", "sklearn", "matplotlib", "pandas")


@pytest.mark.parametrize("group", REGISTRIES)
def test_the_source_agrees_with_the_class(group):
    for entry in REGISTRIES[group]:
        read, imported = entry.options(), source.options_of_class(entry.cls)
        assert read is not None, entry.name
        assert read == imported, entry.name  # names and types
        assert entry.summary == source.first_line(entry.cls.__doc__)


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
    first = "import os, sys; from raylfl.cli import main\nsys.path[0] = ''\nmain(['run', 'digits', 'rounds=x'])\n"
    with forks_after(first, folder) as python:

        def call(*argv):
            out = python("sys.stderr = sys.stdout\n" + COMMAND.format(folder=str(folder), argv=argv, heavy=HEAVY))
            said, _, end = out.rpartition("ENDED ")
            status, *imported = end.split()
            return status, said, imported

        yield call


@pytest.mark.parametrize(
    "argv",
    [
        ("run", "digits", "algoritm.name=focus"),
        ("run", "digits", "algorithm=focuss"),
        ("run", "digits", "algorithm.gama=1"),
        ("run", "digits", "algorithm.gamma=x"),
        ("run", "digits", "model=mpl"),
        ("run", "digits", "model.init_args.hiden=3"),
        ("run", "digits", "data=mnits"),
        ("run", "digits", "data.init_args.upscale=x"),
        ("run", "digitz"),
        ("run", "digits", "local.steps=0"),
        ("run", "digits", "algorithm=fedavgm", "algorithm.beta=1.0"),
        ("run", "digits", "partition.clases=2"),
        ("compare", "digits", "-a", "focus,fedavgg"),
        ("partition", "digits", "partition=exdirr"),
        ("trace", "digits", "link=bernouli"),
        ("profile", "digits", "rounds=x"),
        ("sweep", "digits_lr", "rounds=x"),
        ("sweep", "digits_lrr"),
        ("resume", "nowhere"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_found_before_torch_is_imported(command, argv):
    status, said, imported = command(*argv)
    assert status == "2", said
    assert imported == []


@pytest.mark.parametrize("argv", [(), ("--help",), ("run", "--help"), ("list",), *(("list", kind) for kind in KINDS)])
def test_help_and_lists_import_nothing_heavy(command, argv):
    _, said, imported = command(*argv)
    assert "Traceback" not in said
    assert imported == []


def test_a_shipped_name_cannot_be_taken():
    with pytest.raises(ValueError, match="two algorithms are called fedavg"):
        REGISTRIES["algorithm"].register("fedavg")(type("Mine", (), {"__module__": "mine"}))
