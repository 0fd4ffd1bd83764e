"""Statements of the pages, each computed from the code."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import raylfl
from docs import reference
from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.cli import main
from raylfl.cli.doctor import DEFAULT_RUN
from raylfl.components.extras import EXTRAS, REQUIRED
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.load import SECRET, load_config
from raylfl.errors import BadConfig
from raylfl.python.api import checked
from raylfl.theory.summary import theory_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def text_of(name):
    return " ".join((ROOT / name).read_text().split())


def test_methods_on_any_directed_graph():
    graphs = {entry.name for entry in ALGORITHMS if issubclass(entry.cls, GraphAlgorithm)}
    directed = {name for name in graphs if ALGORITHMS.get(name).cls.family != "doubly"}
    (said,) = re.findall(r"Only ([^.]*?) run on any directed graph", text_of("docs/graphs.md"))
    assert set(re.findall(r"`(\w+)`", said)) == directed


def test_the_page_on_installing_names_python_extras_and_no_index():
    least = PROJECT["requires-python"].removeprefix(">=")
    for name in ("README.md", "docs/install.md"):
        assert f"Python {least} or newer" in text_of(name)
    page = (ROOT / "docs/install.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(PROJECT["optional-dependencies"]) - {"docs", "dev"}
    # it is in none: `pip install raylfl` is an error, or another project
    assert "not in a package index" in text_of("docs/install.md")
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]:
        assert re.search(r"pip install (?:--?\w+ )*'?raylfl", path.read_text()) is None, path


@pytest.mark.parametrize("name", ["docs/install.md"])
def test_the_shown_extras_suffice_for_the_shown_run(name):
    (extras,) = set(re.findall(r"pip install '\.\[([\w,]+)\]'", (ROOT / name).read_text()))
    installed = {module for extra in extras.split(",") for module in EXTRAS[extra]} | set(REQUIRED)
    assert DEFAULT_RUN - {"ray"} <= installed  # of a run with runtime.backend=local


def test_the_secrets_that_are_refused():
    (said,) = re.findall(r"names contain ([A-Z, or]+) are refused", text_of("docs/config.md"))
    names = re.findall(r"[A-Z]+", said)
    (pattern,) = re.findall(r"\(\?:([A-Z|]+)", SECRET.pattern)
    assert names == [name for name in pattern.split("|") if name]


def test_the_files_of_the_algorithms():
    (said,) = re.findall(r"have the methods' names, except (.*?) .Your own method", text_of("docs/algorithms.md"))
    stated = {
        name: file
        for file, names in re.findall(r"`(\w+)\.py` \(([^)]*)\)", said)
        for name in re.findall(r"`(\w+)`", names)
    }
    files = {entry.name: entry.cls.__module__.rpartition(".")[2] for entry in ALGORITHMS}
    assert stated == {name: file for name, file in files.items() if name != file}


def test_what_the_preset_of_diloco_sets():
    local = yaml.safe_load((ROOT / "conf/preset/diloco.yaml").read_text())["local"]
    assert "weight_decay" in local
    assert not {"steps", "lr"} & set(local)
    assert "The preset sets the decay; you set `local.steps` and `local.lr`" in text_of("docs/algorithms.md")


def test_a_method_that_assumes_more_than_the_config_gives_is_refused(tmp_path):
    """README: a run whose method assumes something else warns or is refused."""
    from raylfl.python.api import checked

    edges = tmp_path / "one_way.txt"
    edges.write_text("0 1\n1 2\n2 0\n0 2\n")
    topology = f"topology={{name: file, path: {edges}, one_way: true}}"
    with pytest.raises(BadConfig):
        checked(load_config("digits", ["algorithm=extra", "num_clients=3", "local.steps=1", topology]))
    with pytest.raises(BadConfig):
        checked(load_config("digits", ["algorithm=optimal_sampling"]))


def test_the_keys_that_change_results_are_not_called_rounding():
    page = text_of("docs/config.md")
    assert "`precision=bf16-mixed` changes results" in page
    (said,) = re.findall(r"Exceptions, by rounding only: (.*?)\. ", page)
    named = set(re.findall(r"`(\w+)", said))
    keys = {"threads", "micro_cohort", "vectorize", "layout", "compile", "processes_per_worker", "placement"}
    assert keys == named


MIB = 2**20
CONSTANTS = [  # page, words with a number, its unit, the constant of the code
    ("adding-an-algorithm", r"Large uploads\*\* \((\d+) MiB or more\)", MIB, "core.chunked_matrix.LARGE"),
    ("config", r"aliases that expand to over ([\d,]+) values", 1, "config.text.MAX_VALUES"),
    ("config", r"more than (\d+) levels", 1, "config.text.MAX_DEPTH"),
    ("formats", r"`\{\"0\": \[indices\], \.\.\.\}`, up to ([\d,]+) samples", 1, "runtime.session.MOST_SAMPLES"),
    ("formats", r"\[clients, classes\], up to ([\d,]+) clients", 1, "runtime.session.MOST_CLIENTS"),
    ("placement", r"object store in parts of (\d+) MiB", MIB, "runtime.ray.stored.PIECE"),
    ("python", r"kept in `objects.pkl` up to (\d+) MiB", MIB, "runtime.records.provenance.LARGEST"),
    ("running", r"from (\d+) GiB on in a file in the temporary folder", 2**30, "core.client_rows.IN_MEMORY"),
    ("running", r"ends after `runtime.wait` seconds \((\d+);", 1, "the default of runtime.wait"),
    ("running", r"within the (\d+) s of `jobs/runtime_env.yaml`", 1, "jobs/runtime_env.yaml"),
]


@pytest.mark.parametrize(("page", "words", "unit", "name"), CONSTANTS, ids=[constant[-1] for constant in CONSTANTS])
def test_a_constant_in_prose_is_that_of_the_code(page, words, unit, name):
    (number,) = re.findall(words, text_of(f"docs/{page}.md"))
    if name == "jobs/runtime_env.yaml":
        value = yaml.safe_load((ROOT / name).read_text())["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]
    elif name == "the default of runtime.wait":
        value = f"{RuntimeConfig().wait:g}"
    else:
        value = reference.value(name)
    assert f"{int(number.replace(',', '')) * unit}" == value.replace(",", "")


TROUBLES = ROOT / "docs" / "troubleshooting.md"
JOINED = re.compile(r'"\s*\n?\s*f?"')  # a text in several literals
HOLES = re.compile(r"\{[^{}]*\}")


def messages():
    """The fixed parts of each message of the table, without its `...`."""
    cells = re.findall(r"^\| `([^`]+)` \|", TROUBLES.read_text(), re.MULTILINE)
    return {cell: [part.strip(" ;:,") for part in cell.split("...") if part.strip(" ;:,")] for cell in cells}


def test_every_message_of_the_page_is_in_the_code():
    source = "\n".join(path.read_text() for path in sorted((ROOT / "raylfl").rglob("*.py")))
    text = " ".join(HOLES.sub("{}", JOINED.sub("", source)).split())
    missing = {cell: part for cell, parts in messages().items() for part in parts if part not in text}
    assert len(messages()) >= 25
    assert missing == {}


PAPERS = (Path(__file__).parents[2] / "docs" / "papers.md").read_text()
NAMES = sorted(
    set(re.findall(r"`(?:raylfl\.theory\.)?((?:focus|sfl|fedacs|fedaware|fedaware_rate)\.[a-z_]+)`", PAPERS))
)
RIDGE = [
    "num_clients=3",
    "data.init_args={num_clients: 3, rows_per_client: 7, dim: 4, lam: 0.3}",
    "local.steps=[1, 4, 9]",
    "local.lr=1e-8",
    "participation={name: uniform, size: 2}",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_function_of_the_page_exists(name):
    module, function = name.split(".")
    assert callable(getattr(importlib.import_module(f"raylfl.theory.{module}"), function))


def test_what_the_page_of_papers_says_is_printed_is_printed():
    [row] = [line for line in PAPERS.splitlines() if "| printed by `theory CONFIG`" in line]
    symbols = re.findall(r"`([^`]+)`", row.split("|")[1])
    assert len(symbols) > 9
    printed = theory_of(checked(load_config("ridge", [*RIDGE, "algorithm.name=fedavg"]))).constants
    words = {word for c in printed for word in (c.symbol, *c.meaning.replace(",", " ").split())}
    assert set(symbols) <= words
    assert "prefers clients with few local steps" in PAPERS
    theory = theory_of(checked(load_config("ridge", [*RIDGE, "algorithm.name=fedacs"])))
    assert any("fewest over most local steps" in p.what for p in theory.promises)


PREFIX = f"{Path(raylfl.__file__).parent}/"
SMALL = ["num_clients=2", "participation={name: full}", "local.steps=1"]
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


def functions_of_the_page():
    """(file, qualified name) of each line of the page's block `calls`."""
    block = ARCHITECTURE.read_text().partition("```calls\n")[2].partition("```")[0]
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
