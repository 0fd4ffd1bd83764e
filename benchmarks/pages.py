"""Functions that write parts of pages: benchmarks/NOTES.md, or pages in docs/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "NOTES.md"


def write_part(name: str, text: str, page: Path = PAGE) -> None:
    """Replaces the text between the page's comments `<!-- NAME: ...` and `<!-- end of NAME -->`."""
    before, begin, rest = page.read_text().partition(f"<!-- {name}: ")
    about, _, rest = rest.partition("\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    assert begin, f"{page} has no part {name}"
    assert end, f"the part {name} of {page} has no end"
    page.write_text(f"{before}{begin}{about}\n{text}\n{end}{after}")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table with one column per key of the first row."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
