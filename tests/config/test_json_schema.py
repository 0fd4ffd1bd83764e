"""The JSON schema accepts valid configs and refuses others."""

from __future__ import annotations

import json

import pytest
import yaml
from jsonschema import Draft202012Validator

from raylfl.cli import main
from raylfl.config.find import conf_roots
from raylfl.config.json_schema import config_schema

VALIDATOR = Draft202012Validator(config_schema())
SHIPPED = sorted({p for root in conf_roots() for p in root.rglob("*.yaml") if "sweep" not in p.parts})


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_it_takes_every_shipped_config(path):
    VALIDATOR.validate(yaml.safe_load(path.read_text()))


GOOD = [
    {"rounds": "${seed}", "model": "lenet5", "algorithm": "focus", "local": {"lr_schedule": "sqrt"}},
    {"participation": {"size": 5}, "algorithm": {"name": "fedprox", "mu": 0.1}},
    {"participation": {"name": "uniform", "availability": {"name": "markov", "p_on": 0.3}}},
    {"algorithm": {"class_path": "mine.Method", "anything": 1}, "data": {"class_path": "mine.Data", "init_args": {}}},
    {"eval": {"global": True}, "base": ["digits"]},
]
BAD = [
    {"round": 1},
    {"rounds": -1},
    {"rounds": "ten"},
    {"algorithm": "focuss"},
    {"algorithm": {"name": "focus", "mu": 1.0}},
    {"algorithm": {"name": "fedavgm", "beta": 1.0}},
    {"local": {"lr": 0}},
    {"local": {"lr_schedule": {"decay": 2}}},
    {"runtime": {"backend": "spark"}},
    {"model": {"name": "lenet5", "init_args": {"paddings": 2}}},
    {"eval": {"global_": True}},
]


@pytest.mark.parametrize("content", GOOD, ids=str)
def test_the_schema_accepts_valid_configs(content):
    VALIDATOR.validate(content)


@pytest.mark.parametrize("content", BAD, ids=str)
def test_the_schema_refuses_invalid_configs(content):
    assert not VALIDATOR.is_valid(content)


def test_the_command_prints_it(capsys):
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(config_schema()))
    assert "the number of communication rounds" in json.dumps(printed["properties"]["rounds"])
