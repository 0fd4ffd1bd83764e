"""The page on the Python interface: its pieces of code run in order, unchanged."""

import re
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text()


def test_the_pieces_of_the_page_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "waves", raising=False)
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path / "runs"))
    files = {title: content for _, title, content in blocks(DOCS / "tutorials/own-model-and-data.md")}
    (tmp_path / "waves.py").write_text(files["waves.py"])
    names = {"__name__": "page"}
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.S)):
        try:
            exec(compile(code, f"docs/python.md, piece {number}", "exec"), names)
        except Exception as error:
            pytest.fail(f"piece {number}: {type(error).__name__}: {error}")
