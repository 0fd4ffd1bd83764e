"""The JSON schema of sweep files accepts valid ones and refuses others."""

from __future__ import annotations

import json

import pytest
import yaml
from jsonschema import Draft202012Validator

from raylfl.cli import main
from raylfl.config.find import conf_roots
from raylfl.tune.schema import sweep_schema

VALIDATOR = Draft202012Validator(sweep_schema())
SHIPPED = sorted({p for root in conf_roots() for p in root.glob("sweep/*.yaml")})
GRID = {"grid": [0.1]}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_it_accepts_every_shipped_sweep(path):
    VALIDATOR.validate(yaml.safe_load(path.read_text()))


GOOD = [
    {"base": "digits", "space": {"local.lr": GRID}, "seeds": [0, 1], "rounds": 5},
    {"space": {"local.lr": [{**GRID, "when": {"algorithm.name": "focus"}}, {"loguniform": [0.01, 1]}]}},
    {"scheduler": {"name": "asha", "grace": 5}},
]
BAD = [
    {"space": {"local.lr": {"grids": [1]}}},
    {"space": {"local.lr": {**GRID, "uniform": [0, 1]}}},
    {"space": {"local.lr": {"uniform": [0]}}},
    {"scheduler": "hyperband"},
    {"scheduler": {"name": "asha", "interval": 5}},
    {"retries": -1},
    {"samples": 0},
    {"local": {"lr": 0}},
]


@pytest.mark.parametrize("content", GOOD, ids=str)
def test_it_accepts_valid_sweeps(content):
    VALIDATOR.validate(content)


@pytest.mark.parametrize("content", BAD, ids=str)
def test_it_refuses_invalid_sweeps(content):
    assert not VALIDATOR.is_valid(content)


def test_the_command_prints_it(capsys):
    assert main(["schema", "--sweep"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(sweep_schema()))
