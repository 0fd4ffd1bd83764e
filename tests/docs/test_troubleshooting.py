"""docs/troubleshooting.md: every message of the page is one of the package's."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
JOINED = re.compile(r'"\s*\n?\s*f?"')  # a text in several literals
HOLES = re.compile(r"\{[^{}]*\}")


def messages():
    """The fixed parts of each message of the table, without its `...`."""
    cells = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    return {cell: [part.strip(" ;:,") for part in cell.split("...") if part.strip(" ;:,")] for cell in cells}


def test_every_message_of_the_page_is_in_the_code():
    source = "\n".join(path.read_text() for path in sorted((ROOT / "raylfl").rglob("*.py")))
    text = " ".join(HOLES.sub("{}", JOINED.sub("", source)).split())
    missing = {cell: part for cell, parts in messages().items() for part in parts if part not in text}
    assert len(messages()) >= 25
    assert missing == {}
