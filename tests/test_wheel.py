"""The built wheel, unpacked: it is complete without the checkout, with its configs."""

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


def names_below(folder, pattern):
    return {p.relative_to(folder).as_posix() for p in folder.rglob(pattern) if "__pycache__" not in p.parts}


def program(unpacked, place, *argv):
    """`raylfl ARGV` of the unpacked wheel in an empty directory, without access to the checkout."""
    place.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    code = "import sys; from raylfl.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *argv]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=240)


def test_the_wheel_holds_every_module_and_every_config_and_nothing_else(unpacked):
    assert names_below(unpacked / "raylfl", "*.py") == names_below(ROOT / "raylfl", "*.py")
    assert names_below(unpacked / "raylfl" / "conf", "*.yaml") == names_below(ROOT / "conf", "*.yaml")
    assert {p.name for p in unpacked.iterdir() if not p.name.endswith(".dist-info")} == {"raylfl"}
    assert names_below(unpacked / "raylfl" / "jobs", "*") == names_below(ROOT / "jobs", "*")
    data = names_below(ROOT / "raylfl", "*") - names_below(ROOT / "raylfl", "*.py")
    assert {name for name in data if (ROOT / "raylfl" / name).is_file()} <= names_below(unpacked / "raylfl", "*")


@pytest.mark.parametrize("argv", [["list"], ["run", "digits", "--print-config"]])
def test_the_wheel_lists_what_there_is_and_finds_its_configs(argv, unpacked, tmp_path, capsys):
    done = program(unpacked, tmp_path / "empty", *argv)
    assert (done.returncode, done.stderr) == (0, "")
    assert cli.main(argv) in (0, None)
    assert done.stdout == capsys.readouterr().out


def test_the_wheel_writes_the_files_of_jobs(unpacked, tmp_path):
    done = program(unpacked, tmp_path / "empty", "new", "job")
    assert (done.returncode, done.stderr) == (0, "")
    for path in (ROOT / "jobs").iterdir():
        assert (tmp_path / "empty" / "jobs" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("command", [["reproduce", "--list"], ["publish", "sfl/fig1"]])
def test_the_wheel_says_that_the_papers_are_in_the_repository(command, unpacked, tmp_path):
    done = program(unpacked, tmp_path / "empty", *command)
    assert done.returncode == 2
    assert f"raylfl {command[0]} needs the repository" in done.stderr


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
