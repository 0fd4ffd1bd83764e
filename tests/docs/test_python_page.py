"""The page on the Python interface: its pieces of code run in order, unchanged."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/python.md").read_text()


def test_the_pieces_of_the_page_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path / "runs"))
    names = {"__name__": "page"}
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.S)):
        try:
            exec(compile(code, f"docs/python.md, piece {number}", "exec"), names)
        except Exception as error:
            pytest.fail(f"piece {number}: {type(error).__name__}: {error}")
