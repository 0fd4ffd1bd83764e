"""Every measured table is in the appendix, with the command that prints it, date, commit and machine."""

import importlib.util
import re

import pytest

from benchmarks import pages
from benchmarks.__main__ import PAGES, PARTS
from docs.reference import ROOT

TEXT = pages.MEASUREMENTS.read_text()
TABLES = re.findall(
    r"^<!-- (\w+): (?:written|printed) by `python -m ([\w.]+)([^`]*)` -->\n\n(.*)\n", TEXT, re.MULTILINE
)
STAMP = re.compile(r"20\d\d-\d\d-\d\d, commit [0-9a-f]{8}, .+:$")


@pytest.mark.parametrize(("name", "module", "arguments", "line"), TABLES, ids=[part[0] for part in TABLES])
def test_a_measured_table_says_how_when_and_where(name, module, arguments, line):
    assert importlib.util.find_spec(module)
    assert module != "benchmarks" or arguments.split()[0] == name in PARTS
    assert STAMP.match(line)


def test_every_table_of_the_appendix_has_a_command_and_kernels_say_when_and_where():
    tables = len(re.findall(r"^\| --- ", TEXT, re.MULTILINE))
    assert tables == len(TABLES) == len(set(re.findall(r"<!-- end of (\w+) -->", TEXT)))
    assert {*PAGES} < {name for name, *_ in TABLES}
    (line,) = re.findall(r"^Written by .*: (20.*)\.$", (ROOT / "docs/kernels.md").read_text(), re.MULTILINE)
    assert STAMP.match(f"{line}:")


def test_what_is_written_has_date_commit_and_machine(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("<!-- speed: x -->\nold\n<!-- end of speed -->\n")
    monkeypatch.setattr(pages, "MEASUREMENTS", page)
    pages.write_measurement("speed", pages.plain_table([{"a": 1.23456, "b": (1, 2.5)}]))
    _, _, line, _, *rows = page.read_text().split("\n")
    assert STAMP.match(line)
    assert rows[:3] == ["| a | b |", "| --- | --- |", "| 1.23 | 1 - 2.5 |"]


def test_other_pages_have_no_times_of_a_machine():
    """A page says "about half"; numbers with a unit of time stand in the appendix, or are constants of the code."""
    number = re.compile(r"(?<![\w.`-])\d+(?:\.\d+)? (?:ms|us|GFLOP/s)\b|\btakes \d+")
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = re.sub(r"<!-- (\w+): .*?<!-- end.*?-->|^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
        if path.name not in ("measurements.md", "kernels.md", "faults.md"):
            assert number.findall(text) == [], path.name
