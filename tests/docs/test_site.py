"""The site: its navigation and reference; the examples of docstrings and of the page on Python run."""

import ast
import doctest
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import raylfl
from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
REFERENCE = sorted((ROOT / "docs/api").glob("*.md"))


def pages(nav):
    for entry in nav:
        content = entry if isinstance(entry, str) else next(iter(entry.values()))
        yield from [content] if isinstance(content, str) else pages(content)


def test_the_navigation_has_every_page():
    on_disk = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    on_disk = {page for page in on_disk if not page.startswith(("profiles/", "results/"))}  # results.md links to those
    assert set(pages(SITE["nav"])) == on_disk | {"index.md", "contributing.md", "changelog.md"}


@pytest.mark.parametrize("page", REFERENCE, ids=lambda path: path.stem)
def test_the_reference_names_existing_objects(page):
    blocks = re.findall(r"^::: ([\w.]+)\n((?: .*\n)*)", page.read_text(), re.M)
    assert blocks
    for name, options in blocks:
        members = re.findall(r"members: \[(.+)\]", options)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            owner, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(owner), attribute), name
            continue
        for member in ", ".join(members).split(", ") if members else []:
            assert hasattr(module, member), f"{name}.{member}"


def test_examples_of_the_reference_run():
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs/api/testing.md").read_text(), re.S):
        exec(code, {})


def test_the_version_is_the_same_wherever_a_release_sets_it():
    """docs/releases.md, step 2."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    headings = re.findall(r"^## \[([\w.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    assert headings[1:2] in ([], [version])


def test_no_docstring_has_brackets_that_markdown_reads_as_a_reference():
    """`E[s_i] [N]` would be a link to a page called N, and `make docs` ends with a warning."""
    found = []
    for path in sorted((ROOT / "raylfl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                lines = (ast.get_docstring(node) or "").splitlines()
                found += [f"{path}: {line}" for line in lines if re.search(r"\] \[[^\[\]]+\]", line)]
    assert found == []


PACKAGE = Path(raylfl.__file__).parent
WITH_EXAMPLES = sorted(path for path in PACKAGE.rglob("*.py") if re.search(r"^ *>>> ", path.read_text(), re.MULTILINE))


def name_of(path):
    return ".".join(["raylfl", *path.relative_to(PACKAGE).with_suffix("").parts])


@pytest.mark.parametrize("name", map(name_of, WITH_EXAMPLES))
def test_the_examples_of_a_module_give_the_printed_results(name):
    result = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_public_helpers_have_examples():
    assert len(WITH_EXAMPLES) >= 8


DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text()


def test_the_pieces_of_the_page_run_in_order(tmp_path, monkeypatch, one_core, undrawn):
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
