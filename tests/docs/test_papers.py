"""docs/papers.md names functions that exist, and quantities that `raylfl theory` prints."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from raylfl.config.load import load_config
from raylfl.python.api import checked
from raylfl.theory.summary import theory_of

PAGE = (Path(__file__).parents[2] / "docs" / "papers.md").read_text()
NAMES = sorted(set(re.findall(r"`(?:raylfl\.theory\.)?((?:focus|sfl|fedacs|fedaware|fedaware_rate)\.[a-z_]+)`", PAGE)))
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


def test_what_the_page_says_is_printed_is_printed():
    [row] = [line for line in PAGE.splitlines() if "| printed by `theory CONFIG`" in line]
    symbols = re.findall(r"`([^`]+)`", row.split("|")[1])
    assert len(symbols) > 9
    printed = theory_of(checked(load_config("ridge", [*RIDGE, "algorithm.name=fedavg"]))).constants
    words = {word for c in printed for word in (c.symbol, *c.meaning.replace(",", " ").split())}
    assert set(symbols) <= words


def test_the_preference_of_fedacs_for_few_local_steps_is_printed():
    assert "prefers clients with few local steps" in PAGE
    theory = theory_of(checked(load_config("ridge", [*RIDGE, "algorithm.name=fedacs"])))
    assert any("fewest over most local steps" in p.what for p in theory.promises)
