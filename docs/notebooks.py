"""The tutorials as notebooks, made from their pages.

    python docs/notebooks.py

writes `docs/tutorials/NAME.ipynb` beside `NAME.md`. A fence with a title becomes a cell that writes the file, `bash`
becomes a `%%bash` cell, `python` stays as it is, and the `text` below any of them is stored as its output. All else is
text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = sorted(Path(__file__).parent.glob("tutorials/*.md"))
INSTALL = "pip install '.[vision,report,tune]' jupyterlab"
NOTE = f"*Made from [{{name}}](./{{name}}) by `python docs/notebooks.py`; first, in a clone of raylfl: `{INSTALL}`.*"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(page: Path) -> dict[str, Any]:
    """The notebook of a page, in Jupyter's format 4.5."""
    text = page.read_text(encoding="utf-8")
    at = text.index("\n")  # behind the title
    cells = [_markdown(f"{text[:at]}\n\n{NOTE.format(name=page.name)}")]
    blocks = [*BLOCK.finditer(text)]
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        lead, (language, file, content) = text[at : block.start()], block.groups()
        shown = after[3] if after is not None and after[1] == "text" else ""
        if language == "text" and cells[-1]["cell_type"] == "code":
            cells[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": content.splitlines(True)}]
        elif code := _code(language, file, content, shown):
            cells += [_markdown(lead), _cell("code", code, execution_count=None, outputs=[])]
        else:
            cells.append(_markdown(text[at : block.end()]))
        at = block.end()
    cells.append(_markdown(text[at:]))
    kept = [cell for cell in cells if cell["source"]]
    for number, cell in enumerate(kept):
        cell["id"] = f"cell-{number}"
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return {"cells": kept, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def written(page: Path) -> str:
    """The content of the page's notebook file."""
    return json.dumps(notebook(page), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _code(language: str, file: str | None, content: str, shown: str) -> str | None:
    """The source of a cell; None for a fence that is not executed. shown: what it prints."""
    if file:
        return f"%%writefile {file}\n{content}"
    if language == "bash":
        refused = " --no-raise-error" * shown.startswith("raylfl: ")
        return f"%%bash{refused}\n{content}"
    return content if language == "python" else None


def _markdown(text: str) -> dict[str, Any]:
    return _cell("markdown", text)


def _cell(kind: str, text: str, **more: Any) -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "source": text.strip("\n").splitlines(True), **more}


if __name__ == "__main__":
    for path in PAGES:
        path.with_suffix(".ipynb").write_text(written(path), encoding="utf-8")
