"""`make test-matrix`: the fast tests with the oldest and the newest supported libraries, and on every supported Python.

    python -m benchmarks.matrix [--only NAME] [--folder DIR] [--write] [PYTEST ARGUMENT ...]

Each row of the matrix has its own virtual environment below `--folder` (kept for the next call, several GB each). The
oldest versions are the lower bounds of pyproject.toml, the newest what pip chooses without them. A Python that is not
installed is named and left out. `--write` adds the rows to docs/releases.md; rows of earlier calls stay in
DIR/rows.json.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from shutil import which
from typing import NamedTuple

from benchmarks.pages import ROOT, table, write_part

SHOWN = ("torch", "lightning", "ray", "numpy")  # versions in the table
TESTS = [
    "-m",
    "not slow and not long and not exhaustive",
    "-n",
    "auto",
    "--dist",
    "loadgroup",
    "-q",
    "-p",
    "no:cacheprovider",
]


class Row(NamedTuple):
    """One environment. python: the version of the interpreter; oldest: whether libraries are at their lower bounds."""

    name: str
    python: str
    oldest: bool = False


ROWS = [Row("oldest", "3.11", oldest=True), Row("newest", "3.11"), Row("newest", "3.12"), Row("newest", "3.13")]


def requirements(oldest: bool) -> list[str]:
    """What raylfl and its tests need; the libraries that raylfl runs on at their lower bounds if `oldest`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    libraries = [
        *project["dependencies"],
        *(line for name, lines in extras.items() if name not in ("all", "dev", "docs") for line in lines),
    ]
    if oldest:
        libraries = [at_lower_bound(line) for line in libraries]
    return sorted({*libraries, *(line for line in extras["dev"] if "mypy" not in line and "types-" not in line)})


def at_lower_bound(requirement: str) -> str:
    """`ray[tune]>=2.50` -> `ray[tune]==2.50.*`, `numpy>=2` -> `numpy==2.0.*`."""
    return re.sub(r">=(\d+)(\.\d+)?", lambda bound: f"=={bound[1]}{bound[2] or '.0'}.*", requirement)


def environment(row: Row, folder: Path) -> Path | None:
    """The Python of a row's virtual environment, which is made if need be; None if its interpreter is not installed."""
    interpreter = which(f"python{row.python}")
    if interpreter is None or subprocess.run([interpreter, "-c", ""], capture_output=True).returncode:
        return None
    home = folder / f"{row.name}-{row.python}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        subprocess.run([interpreter, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements(row.oldest)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", str(ROOT)], check=True)
        (home / "ready").touch()
    return python


def tested(row: Row, python: Path, arguments: list[str]) -> dict[str, str]:
    """The table's line of a row: versions, and pytest's last line."""
    code = f"from importlib.metadata import version\nprint(*map(version, {SHOWN!r}), sep='\\n')"
    versions = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    done = subprocess.run([python, "-m", "pytest", *TESTS, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    last = done.stdout.strip().splitlines()[-1].strip("= ")
    return {"libraries": row.name, "Python": row.python, **dict(zip(SHOWN, versions, strict=True)), "result": last}


def main() -> int:
    """Runs the rows; the exit code is 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="rows whose name or Python contains this text")
    parser.add_argument("--folder", type=Path, default=ROOT / ".matrix")
    parser.add_argument("--write", action="store_true")
    options, arguments = parser.parse_known_args()
    lines: dict[str, dict[str, str]] = {}
    stored = options.folder / "rows.json"
    if stored.exists():
        lines = json.loads(stored.read_text())
    for row in ROWS:
        name = f"{row.name} {row.python}"
        if options.only and options.only not in name:
            continue
        python = environment(row, options.folder)
        if python is None:
            print(f"{name}: python{row.python} is not installed, left out")
            continue
        lines[name] = tested(row, python, arguments)
        stored.write_text(json.dumps(lines, indent=1))
    print(table(list(lines.values())))
    if options.write:
        write_part("matrix", table(list(lines.values())), ROOT / "docs" / "releases.md")
    return any("failed" in line["result"] or "error" in line["result"] for line in lines.values())


if __name__ == "__main__":
    sys.exit(main())
