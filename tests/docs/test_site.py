"""The documentation site: every page is in its navigation, and the reference names only existing objects."""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml

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
