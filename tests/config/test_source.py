"""Registrations read from source agree with the imported classes; mistakes are found without importing torch."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from raylfl import source
from raylfl.config.schema import NAMED_GROUPS
from raylfl.registries import KINDS, REGISTRIES

HEAVY = ("torch", "ray", "lightning", "torchvision", "torchmetrics", "sklearn", "matplotlib", "pandas")
ENTRIES = [pytest.param(entry, id=f"{r.kind}/{entry.name}") for r in REGISTRIES.values() for entry in r]


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_source_agrees_with_the_class(entry):
    read, imported = entry.options(), source.options_of_class(entry.cls)
    assert read is not None
    assert read == imported  # names and types
    assert entry.summary == source.first_line(entry.cls.__doc__)


@pytest.mark.parametrize("group", NAMED_GROUPS)
def test_the_defaults_in_the_source_are_those_of_the_classes(group):
    for entry in REGISTRIES[group]:
        fields = [field for field in dataclasses.fields(entry.cls) if field.default is not dataclasses.MISSING]
        assert REGISTRIES[group].defaults[entry.name] == {field.name: field.default for field in fields}, entry.name


def program(*argv, code="import sys; from raylfl.cli import main; status = main(sys.argv[1:])", **options):
    """(exit status, stderr, heavy modules that were imported) of a command."""
    tail = f"\nprint('IMPORTED', *[m for m in {HEAVY} if m in sys.modules]); sys.exit(status)"
    guarded = f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    status = end.code{tail}"
    done = subprocess.run(
        [sys.executable, "-c", guarded, *argv], capture_output=True, text=True, timeout=120, **options
    )
    return done.returncode, done.stderr, done.stdout.splitlines()[-1].split()[1:]


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
        ("run", "digits", "rounds=x"),
        ("run", "digits", "local.steps=0"),
        ("run", "digits", "local.lr=-1"),
        ("run", "digits", "algorithm=fedavgm", "algorithm.beta=1.0"),
        ("run", "digits", "partition.clases=2"),
        ("run", "digits", "--print-config", "rounds=x"),
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
def test_a_mistake_is_found_before_torch_is_imported(argv, tmp_path):
    code, err, imported = program(*argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert code == 2, err
    assert imported == []


@pytest.mark.parametrize("argv", [(), ("--help",), ("run", "--help"), ("list",), *(("list", kind) for kind in KINDS)])
def test_help_and_lists_import_nothing_heavy(argv, tmp_path):
    _, err, imported = program(*argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert "Traceback" not in err
    assert imported == []


def test_a_shipped_name_cannot_be_taken():
    with pytest.raises(ValueError, match="two algorithms are called fedavg"):
        REGISTRIES["algorithm"].register("fedavg")(type("Mine", (), {"__module__": "mine"}))
