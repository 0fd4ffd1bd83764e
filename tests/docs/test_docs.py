"""The pages name every component, and their commands are accepted."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

import raylfl
from docs import reference
from raylfl.algorithms import ALGORITHMS
from raylfl.config.components import keys_of
from raylfl.config.groups.top import TopConfig
from raylfl.config.load import GROUPS, NAMED_GROUPS, load_config
from raylfl.config.registries import REGISTRIES
from raylfl.config.schema import FIXED_GROUPS
from raylfl.data import DATA
from raylfl.data.text import Texts
from raylfl.heterogeneity.links import LINKS
from raylfl.heterogeneity.participation.base import PARTICIPATION
from raylfl.heterogeneity.partition.base import PARTITIONS
from raylfl.heterogeneity.topologies.base import TOPOLOGIES
from raylfl.models import MODELS
from raylfl.runtime.workers.hooks import HOOKS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = sorted(p for p in (ROOT / "conf").rglob("*.yaml") if not {"sweep", "reproduce"} & set(p.parts))


def rows(page):
    """First cell -> the rest, of every table row of a page."""
    lines = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    named = ((name, row) for row in cells for name in re.findall(r"`([^`]+)`", row[0]))
    return {name: [cell.strip() for cell in row[1:]] for name, row in named}


def section(page, title):
    """The text of the section whose heading begins with the title."""
    parts = re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(title))


@pytest.mark.parametrize("group", ["top", *FIXED_GROUPS])
def test_every_key_of_the_config_is_in_its_section_of_the_page(group):
    heading = "Top level" if group == "top" else "`model` and `data`" if group in ("model", "data") else f"`{group}`"
    text, cls = section("docs/config.md", heading), FIXED_GROUPS.get(group, TopConfig)
    for key in keys_of(cls):
        assert f"| `{key}` |" in text, key


def test_the_tables_of_the_page_are_those_that_the_annotations_make():
    """`python docs/reference.py` generates them, and so does `make format`."""
    text = reference.PAGE.read_text()
    assert reference.page(text) == text


@pytest.mark.parametrize("group", REGISTRIES)
def test_every_option_has_a_meaning(group):
    assert [row[0] for row in reference.options(group) if not row[-1]] == []


@pytest.mark.parametrize("group", reference.GROUPS)
def test_every_key_has_a_meaning(group):
    assert [row[0] for row in reference.keys(reference.GROUPS[group]) if not row[-1]] == []


@pytest.mark.parametrize(
    ("registry", "page"),
    [
        (PARTITIONS, "docs/heterogeneity.md"),
        (PARTICIPATION, "docs/heterogeneity.md"),
        (LINKS, "docs/heterogeneity.md"),
        (TOPOLOGIES, "docs/heterogeneity.md"),
        (MODELS, "docs/models.md"),
        (DATA, "docs/models.md"),
        (ALGORITHMS, "docs/algorithms.md"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_everything_registered_has_a_row(registry, page):
    assert set(registry.names()) <= set(rows(page))


def test_the_stated_options_of_the_algorithms_have_their_defaults():
    for name, cells in rows("docs/algorithms.md").items():
        if name in ALGORITHMS:
            fields = {field.name: field.default for field in dataclasses.fields(ALGORITHMS.get(name).cls)}
            for option, stated in re.findall(r"`(\w+)` ([\w.-]+)", cells[-1]):
                default = fields[option]
                said = {"null": None, "false": False, "true": True}.get(stated, stated)
                same = (
                    float(said) == default if isinstance(default, float | int) and said not in (True, False) else None
                )
                assert said == default or same, (name, option, stated, default)


@pytest.mark.parametrize("registry", [PARTITIONS, PARTICIPATION, LINKS, TOPOLOGIES], ids=lambda registry: registry.kind)
def test_every_option_of_heterogeneity_is_on_the_page(registry):
    text = (ROOT / "docs/heterogeneity.md").read_text()
    for entry in registry:
        for field in dataclasses.fields(entry.cls):
            assert f"`{field.name}`" in text or f"`{field.name}:" in text or f"{field.name}: " in text, (
                entry.name,
                field.name,
            )


def test_the_pictures_of_the_layers_are_those_of_the_import_contract():
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    shown = (["raylfl"], ["raylfl.runtime"])
    contracts = [contract["layers"] for contract in linter["contracts"] if contract.get("containers") in shown]
    text = (ROOT / "docs/architecture.md").read_text()
    pictures = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [
        [layer for line in picture.splitlines() for layer in line[:46].strip().split("  ")] for picture in pictures
    ] == contracts


def test_every_preset_has_a_row():
    assert {path.stem for path in (ROOT / "conf/preset").glob("*.yaml")} <= set(rows("docs/heterogeneity.md"))


def test_every_group_of_the_config_is_mentioned():
    text = (ROOT / "docs/config.md").read_text()
    assert all(f"`{group}`" in text for group in (*GROUPS, *NAMED_GROUPS))


def test_the_stated_numbers_of_parameters_are_those_of_the_models():
    shapes = {"MNIST": (1, 28, 28), "FashionMNIST": (1, 28, 28), "CIFAR-10": (3, 32, 32), "CINIC-10": (3, 32, 32)}
    stated = {name: cells[-1] for name, cells in rows("docs/models.md").items() if name in MODELS and "(" in cells[-1]}
    assert len(stated) == 12
    texts = Texts()
    for name, text in stated.items():
        count, data = re.fullmatch(r"([\d,]+) \((.+)\)", text).groups()
        of_texts = {"in_shape": texts.in_shape, "num_classes": texts.num_classes}
        module = MODELS.get(name).cls(**(of_texts if data == "texts" else {"in_shape": shapes[data]}))
        assert sum(p.numel() for p in module.parameters()) == int(count.replace(",", "")), name


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
        yield pytest.param(words[1], overrides, id=line)


WRITTEN = {param.id: param for path in [*PAGES, *CONFIGS] for param in commands(path.read_text())}
READER = (
    "mine",
    "small",
    "my_package",
    "fedcm",
    "ID",
    ".json",
    "CONFIG",
    "...",
    "<",
)  # things that only the reader has


@pytest.mark.parametrize(
    ("config", "overrides"), [p for name, p in WRITTEN.items() if not any(mark in name for mark in READER)]
)
def test_the_commands_of_the_pages_are_accepted(config, overrides, monkeypatch):
    monkeypatch.chdir(ROOT)
    resolved = load_config(config, overrides)
    for registry, chosen in ((MODELS, resolved.model), (DATA, resolved.data)):
        assert chosen.name is None or chosen.name in registry


def test_the_examples_of_configs_are_accepted(tmp_path):
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            if "space:" in block or "fedcm" in block:  # a sweep; a method that does not exist
                continue
            path = tmp_path / "example.yaml"
            path.write_text(block)
            load_config(path, ["num_clients=20"])


def test_every_hook_of_lightning_has_a_row_with_its_treatment():
    stated = rows("docs/models.md")
    assert {name: stated[name][0] for name in HOOKS} == {name: hook.verdict for name, hook in HOOKS.items()}


def test_the_example_of_a_users_model_and_data_runs_and_logs_the_metrics_on_the_page(tmp_path, monkeypatch):
    page = (ROOT / "docs/models.md").read_text()
    block = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "mine.py").write_text(block)
    (command,) = re.findall(r"^    raylfl run (.*mine.*)$", page, flags=re.MULTILINE)
    config, *overrides = command.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    here = [f"logging.dir={tmp_path}", "logging.report=false", "runtime.backend=local", "rounds=3"]
    row = raylfl.run(config, [*overrides, *here]).metrics[-1]
    (names,) = re.findall(r"^Each row of `metrics.jsonl` then has (.*)\.$", page, flags=re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", names)) <= row.keys()
    assert row["test/f1"] > 0.3
