"""Pages of the site that are files of the repository's root: README, CONTRIBUTING, CHANGELOG; and the pictures of the
ledger (a hook of mkdocs.yml)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PICTURES = "results"  # of the ledger, which lies beside docs/
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, with their links as seen from docs/."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = re.sub(r"\]\((?:docs/)?([\w./-]+\.(?:md|png))(#[\w-]+)?\)", _link, text)
        files.append(File.generated(config, page, content=text))
    for picture in sorted((ROOT / PICTURES).rglob("*.png")):
        files.append(File.generated(config, picture.relative_to(ROOT).as_posix(), abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Pictures of the ledger as seen from docs/results/, where the site has them."""
    return markdown.replace("](../../results/", "](")


def _link(match: re.Match[str]) -> str:
    places = {source: page for page, source in PAGES.items()}
    return f"]({places.get(match[1], match[1])}{match[2] or ''})"
