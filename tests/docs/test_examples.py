"""The examples in docstrings give the printed results."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import raylfl

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
