"""Links from the first use of each word of the glossary on a page (for docs/site.py)."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
SKIPPED = r"```.*?^```|^(?:[#|<!]|    )[^\n]*|`[^`\n]*`|!?\[[^\]]*\]\([^)]*\)"  # fences, headings, tables, code, links
RUNNING = re.compile(rf"{SKIPPED}|([^`\[\n]+)", re.MULTILINE | re.DOTALL)


def linked(text: str, glossary: str) -> str:
    """The text with a link to the glossary at the first use of each of its words, in running text only."""
    for word, anchor in words().items():
        for part in RUNNING.finditer(text):
            use = re.search(rf"(?<![\w/.=-]){word}s?(?![\w/=-]|\.\w)", part[1] or "")
            if use:
                at = part.start(1) + use.start()
                text = f"{text[:at]}[{use[0]}]({glossary}#{anchor}){text[at + len(use[0]) :]}"
                break
    return text


def words() -> dict[str, str]:
    """Word -> anchor of the glossary; the longest words first."""
    text = PAGE.read_text(encoding="utf-8")
    found = {anchor.replace("-", " "): anchor for anchor in re.findall(r'<a id="([\w-]+)"></a>', text)}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))
