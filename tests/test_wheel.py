"""The built wheel, unpacked: it is complete without the checkout, with its configs."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from raylfl.cli import parser as cli
from raylfl.components.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[1]


def build(source, folder):
    """The wheel of a source folder, built without network and without isolation, of the files that git would give."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(wheel):
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


COMMANDS = {
    "list": ["list"],
    "config": ["run", "digits", "--print-config"],
    "job": ["new", "job"],
    "reproduce": ["reproduce", "--list"],
    "publish": ["publish", "sfl/fig1"],
}
PROGRAM = """
import contextlib, io, json, sys
from raylfl.cli import main
found = {}
for name, argv in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(argv)
    found[name] = code, out.getvalue(), err.getvalue()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def done(unpacked):
    """Exit code, stdout and stderr of COMMANDS of the unpacked wheel in an empty directory, without the checkout."""
    place = unpacked.parent / "empty"
    place.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-c", PROGRAM, json.dumps(COMMANDS)]
    ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def names_below(folder, pattern):
    return {p.relative_to(folder).as_posix() for p in folder.rglob(pattern) if "__pycache__" not in p.parts}


def test_the_wheel_holds_every_module_and_every_config_and_nothing_else(unpacked):
    assert names_below(unpacked / "raylfl", "*.py") == names_below(ROOT / "raylfl", "*.py")
    assert names_below(unpacked / "raylfl" / "conf", "*.yaml") == names_below(ROOT / "conf", "*.yaml")
    assert {p.name for p in unpacked.iterdir() if not p.name.endswith(".dist-info")} == {"raylfl"}
    assert names_below(unpacked / "raylfl" / "jobs", "*") == names_below(ROOT / "jobs", "*")
    data = names_below(ROOT / "raylfl", "*") - names_below(ROOT / "raylfl", "*.py")
    assert {name for name in data if (ROOT / "raylfl" / name).is_file()} <= names_below(unpacked / "raylfl", "*")


def test_the_wheel_lists_what_there_is_finds_its_configs_and_writes_the_files_of_jobs(done, unpacked, capsys):
    for name in ("list", "config"):
        assert cli.main(COMMANDS[name]) in (0, None)
        assert done[name] == [0, capsys.readouterr().out, ""]
    assert (done["job"][0], done["job"][2]) == (0, "")
    for path in (ROOT / "jobs").iterdir():
        assert (unpacked.parent / "empty" / "jobs" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("command", ["reproduce", "publish"])
def test_the_wheel_says_that_the_papers_are_in_the_repository(command, done):
    code, _, err = done[command]
    assert code == 2
    assert f"raylfl {command} needs the repository" in err


def test_the_wheel_says_what_it_needs_and_offers_its_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        (entries,) = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        assert "raylfl = raylfl.cli:main" in archive.read(entries).decode()
        required = archive.read(metadata).decode()
    for library in ("torch", "lightning", "ray", "omegaconf", "numpy"):
        assert f"Requires-Dist: {library}" in required
    for extra in (*EXTRAS, "all"):
        assert f"Provides-Extra: {extra}\n" in required
