"""The libraries with which `make test-matrix` runs the tests."""

from __future__ import annotations

import tomllib

import pytest

from benchmarks.matrix import ROWS, at_lower_bound, requirements
from benchmarks.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("requirement", "oldest"),
    [
        ("numpy>=2", "numpy==2.0.*"),
        ("torch>=2.9", "torch==2.9.*"),
        ("ray[default,tune]>=2.50", "ray[default,tune]==2.50.*"),
        ("fsspec>=2024.10", "fsspec==2024.10.*"),
    ],
)
def test_a_lower_bound_is_the_oldest_version(requirement, oldest):
    assert at_lower_bound(requirement) == oldest


def test_the_oldest_row_has_every_library_that_raylfl_may_need_at_its_lower_bound():
    oldest = requirements(oldest=True)
    assert {at_lower_bound(line) for line in PROJECT["dependencies"]} <= set(oldest)
    assert not [line for line in oldest if line.startswith(("torch", "ray", "lightning", "wandb")) and ">=" in line]
    assert len(oldest) == len(requirements(oldest=False))


def test_every_python_of_the_matrix_is_a_supported_one():
    least = PROJECT["requires-python"].removeprefix(">=")
    assert min(tuple(map(int, row.python.split("."))) for row in ROWS) == tuple(map(int, least.split(".")))
