"""The Dockerfile against the repository: what it copies is there, enough for the wheel, and its commands exist."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from raylfl.cli.parser import _parser
from raylfl.components.extras import EXTRAS
from tests.test_wheel import build, names_below

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "Dockerfile").read_text()
STEPS = [line.split(" ", 1) for line in re.sub(r"\\\n\s*", "", TEXT).splitlines() if line and line[0] != "#"]
COPIED = [shlex.split(rest)[:-1] for step, rest in STEPS if step == "COPY" and "--from" not in rest]
SOURCES = [source for sources in COPIED for source in sources]


def commands():
    return [command.split() for step, rest in STEPS if step == "RUN" for command in rest.split("&&")]


def sent(path):
    """Whether .dockerignore lets a path through: the last line that names it or a folder above it counts."""
    kept = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!").removeprefix("**/")
        if line and not line.startswith("#") and any(fnmatch(part, pattern) for part in (path, *path.split("/"))):
            kept = line.startswith("!")
    return kept


def test_what_is_copied_is_in_the_repository_and_sent_to_the_builder():
    assert {"raylfl", "conf", "requirements.txt"} <= set(SOURCES)
    assert [source for source in SOURCES if not (ROOT / source).exists() or not sent(source)] == []
    assert [path for path in ("tests", ".git", "runs", "docs", "raylfl/__pycache__") if sent(path)] == []


@pytest.mark.slow
def test_the_copied_files_make_the_same_wheel(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    wheels = [build(place, tmp_path / str(k)) for k, place in enumerate((source, ROOT))]
    for wheel in wheels:
        shutil.unpack_archive(wheel, wheel.parent / "files", "zip")
    one, other = (names_below(wheel.parent / "files", "*") for wheel in wheels)
    assert one == other


@pytest.mark.slow
def test_pip_has_the_options_that_the_dockerfile_uses():
    for program, command, *words in (words for words in commands() if words[0] == "pip"):
        said = subprocess.run([sys.executable, "-m", program, command, "--help"], capture_output=True, text=True).stdout
        for option in (word for word in words if word.startswith("--")):
            assert option in said, f"pip {command} {option}"


def test_the_entry_point_is_the_command_and_the_user_is_not_root():
    steps = {step: rest for step, rest in STEPS if step not in ("RUN", "COPY", "FROM")}
    (program,) = json.loads(steps["ENTRYPOINT"])
    assert program in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert steps["USER"] != "root"
    assert any(words[0] == "useradd" and words[-1] == steps["USER"] for words in commands())
    extras = dict(rest.split("=", 1) for step, rest in STEPS if step == "ARG")["EXTRAS"]
    assert extras == "all" or extras in EXTRAS


@pytest.mark.parametrize("page", ["Dockerfile", "docs/running.md"])
def test_the_commands_that_are_shown_are_those_of_raylfl(page):
    shown = re.findall(r"^(?:# )?docker run .*? raylfl(?::\w+)? (\w.*)$", (ROOT / page).read_text(), re.M)
    assert shown
    for line in shown:
        assert _parser().parse_args(shlex.split(line)).command
