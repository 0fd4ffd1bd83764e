"""The pages name every component, and their commands are accepted."""

import re
import shlex
from pathlib import Path

import pytest

import raylfl
from docs import reference
from raylfl.algorithms.aggregation import Aggregating
from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.cli import parser
from raylfl.config.load import load_config
from raylfl.config.registries import REGISTRIES
from raylfl.core.algorithm import Algorithm
from raylfl.core.summing import Summing
from raylfl.data import DATA
from raylfl.errors import BadConfig
from raylfl.models import MODELS
from raylfl.runtime.measured import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/tutorials").glob("*.md"))]
CONFIGS = sorted(p for p in (ROOT / "conf").rglob("*.yaml") if not {"sweep", "reproduce"} & set(p.parts))


def rows(page):
    """First cell -> the rest, of every table row of a page."""
    lines = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    named = ((name, row) for row in cells for name in re.findall(r"`([^`]+)`", row[0]))
    return {name: [cell.strip() for cell in row[1:]] for name, row in named}


def parsed(page):
    """The text of a page as one line."""
    return " ".join((ROOT / f"docs/{page}.md").read_text().split())


def section(page, title):
    """The text of the section whose heading begins with the title."""
    parts = re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(title))


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda path: path.stem)
def test_the_generated_parts_of_a_page_are_those_of_the_code(page):
    """`python docs/reference.py` writes them, and so does `make format`."""
    text = page.read_text()
    assert reference.page(text) == text
    assert not re.search(r"^ *<!-- (value|count): ", text, re.MULTILINE)  # the line would be HTML, not text


@pytest.mark.parametrize("group", REGISTRIES)
def test_every_option_has_a_meaning(group):
    assert [row[0] for row in reference.options(group) if not row[-1]] == []


@pytest.mark.parametrize("group", reference.GROUPS)
def test_every_key_has_a_meaning(group):
    assert [row[0] for row in reference.keys(reference.GROUPS[group]) if not row[-1]] == []


def test_every_metric_has_a_row_and_the_page_names_no_other():
    stated = set(rows("docs/metrics.md"))
    assert set(METRICS) <= stated
    groups = {name.partition("/")[0] for name in METRICS}
    extra = {name for name in stated if name.partition("/")[0] in groups} - set(METRICS)
    assert extra == {"nodes/accuracy", "nodes/loss", "nodes/from_mean", "nodes/distance"}


def test_every_environment_variable_is_on_the_page():
    code = "\n".join(path.read_text() for folder in ("raylfl", "jobs") for path in (ROOT / folder).rglob("*.py"))
    used = set(re.findall(r"\bRAYLFL_[A-Z_]+\b", code)) - {"RAYLFL_FAULT"}  # the tests' kill points
    assert used == {name for name in rows("docs/formats.md") if name.startswith("RAYLFL_")}


def test_a_run_leaves_the_files_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = ["runtime.backend=local", "rounds=2", "logging.report=false", "checkpoint.best=test/accuracy"]
    folder = raylfl.run("digits", [*local, "eval.every=1"]).run_dir
    stated = {name.partition("/")[0] for name in rows("docs/formats.md")}
    left = {path.name for path in Path(folder).iterdir()}
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "best.pt", "final.pt", "summary.json"} <= left
    assert left - stated == set()


def test_the_exit_codes_of_the_page_are_those_of_the_parser():
    said = re.search(r"exit code (\d), with (\d) for bad usage or a bad config, and with (\d) for", parsed("commands"))
    assert said is not None
    assert "Exit codes: {} done, {} bad usage or config, {} any other error.".format(*said.groups()) in parser.__doc__


def test_what_a_method_overrides_exists():
    """docs/adding-an-algorithm.md, its first table."""
    known = {name for cls in (Algorithm, Summing, Aggregating, GraphAlgorithm) for name in dir(cls)}
    known |= {"Summing", "Aggregating", "Algorithm", "GraphAlgorithm", "update"}
    table = section("docs/adding-an-algorithm.md", "").partition("| my method has")[2].partition("\n\n")[0]
    cells = [line.rpartition(" | ")[2] for line in table.splitlines()[2:]]
    named = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert len(named) > 20
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_pictures_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target


def commands(text):
    """The arguments of `raylfl run|compare|partition|trace` lines in code blocks and in comments of configs."""
    for line in re.findall(r"^(?:    |# )?(raylfl (?:run|compare|partition|trace) .*)$", text, flags=re.MULTILINE):
        line = re.split(r"\s{3,}|\s#\s", line)[0]
        words = shlex.split(line)[1:]
        overrides = [word for word in words[2:] if "=" in word and not word.startswith("-")]
        yield line, words[1], overrides


EXECUTED = ROOT / "docs/tutorials"  # by test_tutorials.py
READER = re.compile(r"mine|small|my_package|fedcm|ID|\.json|CONFIG|\.\.\.|<")  # things that only the reader has


@pytest.mark.parametrize("pages", [PAGES, CONFIGS], ids=["pages", "configs"])
def test_the_commands_of_the_pages_are_accepted(pages, monkeypatch):
    monkeypatch.chdir(ROOT)
    written = {
        line: (config, overrides)
        for page in pages
        if page.parent != EXECUTED
        for line, config, overrides in commands(page.read_text())
    }
    for line, (config, overrides) in written.items():
        if not READER.search(line):
            try:
                resolved = load_config(config, overrides)
            except BadConfig as error:
                pytest.fail(f"{line}: {error}")
            for registry, chosen in ((MODELS, resolved.model), (DATA, resolved.data)):
                assert chosen.name is None or chosen.name in registry.names(), line


def test_the_examples_of_configs_are_accepted(tmp_path):
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            if "space:" in block or "fedcm" in block:  # a sweep; a method that does not exist
                continue
            path = tmp_path / "example.yaml"
            path.write_text(block)
            load_config(path, ["num_clients=20"])
