"""Functions that write parts of pages: benchmarks/NOTES.md, docs/measurements.md and other pages of docs/."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.tables import cell
from raylfl.runtime.records.summary import raylfl_commit

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "NOTES.md"
MEASUREMENTS = ROOT / "docs" / "measurements.md"


def write_part(name: str, text: str, page: Path = PAGE) -> None:
    """Replaces the text between the page's comments `<!-- NAME: ...` and `<!-- end of NAME -->`."""
    before, begin, rest = page.read_text().partition(f"<!-- {name}: ")
    about, _, rest = rest.partition("\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    assert begin, f"{page} has no part {name}"
    assert end, f"the part {name} of {page} has no end"
    page.write_text(f"{before}{begin}{about}\n{text}\n{end}{after}")


def write_measurement(name: str, text: str) -> None:
    """Replaces a part of docs/measurements.md, with date, commit and machine before it."""
    write_part(name, f"\n{stamp()}:\n\n{text.strip()}\n", MEASUREMENTS)


def stamp() -> str:
    """Today, the commit, this machine's processor and torch's version."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "an unknown CPU")
    commit = (raylfl_commit() or "unknown")[:8]
    return f"{time.strftime('%Y-%m-%d')}, commit {commit}, {os.cpu_count()} cores of {name}, torch {torch.__version__}"


def plain_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table with the numbers rounded as in the terminal."""
    return table([{key: cell(value) for key, value in row.items()} for row in rows])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table with one column per key of the first row."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
