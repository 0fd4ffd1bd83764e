"""docs/architecture.md: the functions between `raylfl run` and the row of the first round, in their order."""

from __future__ import annotations

import sys
from pathlib import Path

import raylfl
from raylfl.cli import main

PREFIX = f"{Path(raylfl.__file__).parent}/"
SMALL = ["num_clients=2", "participation={name: full}", "local.steps=1"]
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def functions_of_the_page():
    """(file, qualified name) of each line of the page's block `calls`."""
    block = PAGE.read_text().partition("```calls\n")[2].partition("```")[0]
    return [tuple(line.split()[:2]) for line in block.splitlines()]


def test_a_run_enters_the_functions_of_the_page_in_this_order(tmp_path, monkeypatch):
    entered = []

    def note(frame, event, argument):
        code = frame.f_code
        if code.co_filename.startswith(PREFIX):
            entered.append((code.co_filename[len(PREFIX) :], code.co_qualname))

    monkeypatch.chdir(tmp_path)
    sys.settrace(note)
    try:
        code = main(["run", "digits", "rounds=1", "runtime.backend=local", "logging.report=false", *SMALL])
    finally:
        sys.settrace(None)
    assert code == 0
    named = functions_of_the_page()
    first = [entered.index(function) for function in named]
    assert len(named) == 20
    assert first == sorted(first), [named[k] for k in range(1, 20) if first[k] < first[k - 1]]
