"""The JSON schemas of configs and of sweep files accept valid ones and refuse others."""

import json

import pytest
import yaml
from jsonschema import Draft202012Validator

from raylfl.cli import main
from raylfl.config.find import conf_roots
from raylfl.config.json_schema import config_schema
from raylfl.tune.spec import sweep_schema

VALIDATORS = {
    kind: Draft202012Validator(schema()) for kind, schema in (("run", config_schema), ("sweep", sweep_schema))
}
GRID = {"grid": [0.1]}


def test_the_schema_accepts_every_shipped_file():
    for path in (path for root in conf_roots() for path in root.rglob("*.yaml")):
        assert VALIDATORS["sweep" if "sweep" in path.parts else "run"].is_valid(yaml.safe_load(path.read_text())), path


GOOD = [
    ("run", {"rounds": "${seed}", "model": "lenet5", "algorithm": "focus", "local": {"lr_schedule": "sqrt"}}),
    ("run", {"participation": {"size": 5}, "algorithm": {"name": "fedprox", "mu": 0.1}}),
    ("run", {"participation": {"name": "uniform", "availability": {"name": "markov", "p_on": 0.3}}}),
    ("run", {"algorithm": {"class_path": "mine.Method", "a": 1}, "data": {"class_path": "mine.Data", "init_args": {}}}),
    ("run", {"eval": {"global": True}, "base": ["digits"]}),
    ("sweep", {"base": "digits", "space": {"local.lr": GRID}, "seeds": [0, 1], "rounds": 5}),
    ("sweep", {"space": {"local.lr": [{**GRID, "when": {"algorithm.name": "focus"}}, {"loguniform": [0.01, 1]}]}}),
    ("sweep", {"scheduler": {"name": "asha", "grace": 5}}),
]
BAD = [
    ("run", {"round": 1}),
    ("run", {"rounds": -1}),
    ("run", {"rounds": "ten"}),
    ("run", {"algorithm": "focuss"}),
    ("run", {"algorithm": {"name": "focus", "mu": 1.0}}),
    ("run", {"algorithm": {"name": "fedavgm", "beta": 1.0}}),
    ("run", {"local": {"lr": 0}}),
    ("run", {"local": {"lr_schedule": {"decay": 2}}}),
    ("run", {"runtime": {"backend": "spark"}}),
    ("run", {"model": {"name": "lenet5", "init_args": {"paddings": 2}}}),
    ("run", {"eval": {"global_": True}}),
    ("sweep", {"space": {"local.lr": {"grids": [1]}}}),
    ("sweep", {"space": {"local.lr": {**GRID, "uniform": [0, 1]}}}),
    ("sweep", {"space": {"local.lr": {"uniform": [0]}}}),
    ("sweep", {"scheduler": "hyperband"}),
    ("sweep", {"scheduler": {"name": "asha", "interval": 5}}),
    ("sweep", {"retries": -1}),
    ("sweep", {"samples": 0}),
    ("sweep", {"local": {"lr": 0}}),
]


@pytest.mark.parametrize(("kind", "content", "valid"), [(*c, True) for c in GOOD] + [(*c, False) for c in BAD], ids=str)
def test_the_schema_accepts_valid_contents_and_no_others(kind, content, valid):
    assert VALIDATORS[kind].is_valid(content) is valid


def test_the_command_prints_them(capsys):
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(config_schema()))
    assert "the number of communication rounds" in json.dumps(printed["properties"]["rounds"])
    assert main(["schema", "--sweep"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(sweep_schema()))
