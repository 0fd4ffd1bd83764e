"""User components by `class_path`: copies of shipped classes have the same bits, in every command."""

import json
import re
import sys
from dataclasses import dataclass

import pytest
import torch
import yaml

import raylfl
from raylfl.algorithms.fedprox import FedProx
from raylfl.cli import main
from raylfl.config.load import load_config
from raylfl.core.algorithm import Algorithm
from raylfl.errors import BadConfig
from tests.test_cli import PLAIN

MISSPELT = """
from raylfl.algorithms.fedavg import FedAvg


class Misspelt(FedAvg):
    def empty_rounds(self, server, r):
        return {"x": server["x"]}

    own_steps = True
"""
SMALL = ["rounds=3", "num_clients=6", "eval.every=2", "logging.report=false", "runtime.backend=local", *PLAIN]
OWN = [
    "algorithm.class_path=mine.Sprung",
    "algorithm.mu=0.1",
    "partition={class_path: mine.Skewed, alpha: 0.5}",
    "participation={class_path: mine.Some, size: 4, availability: {class_path: mine.Awake, p: 0.8}}",
    "link={class_path: mine.Radio, q: 0.1}",
]
SHIPPED = [
    "algorithm={name: fedprox, mu: 0.1}",
    "partition={name: dirichlet, alpha: 0.5}",
    "participation={name: uniform, size: 4, availability: {name: bernoulli, p: 0.8}}",
    "link={name: bernoulli, q: 0.1}",
]


@pytest.fixture
def elsewhere(mine, monkeypatch):
    """`elsewhere(folder)`: from now on as in a new process that has only this working directory."""

    def go(folder):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(mine))])
        monkeypatch.delitem(sys.modules, "mine")

    return go


def test_copies_of_shipped_components_give_the_same_bits_and_the_saved_config_the_same_run(mine):
    ours, shipped = raylfl.run("digits", [*SMALL, *OWN]), raylfl.run("digits", [*SMALL, *SHIPPED])
    assert torch.equal(ours.params, shipped.params)
    assert (ours.run_dir / "participation.jsonl").read_text() == (shipped.run_dir / "participation.jsonl").read_text()
    saved = yaml.safe_load((ours.run_dir / "config.yaml").read_text())
    named = {"name": "Sprung", "class_path": "mine.Sprung"}
    assert saved["algorithm"] == {**named, "mu": 0.1, "gamma": 1.0, "aggregate": "mean"}
    assert json.loads((ours.run_dir / "summary.json").read_text())["algorithm"] == "Sprung"
    assert torch.equal(raylfl.run(ours.run_dir / "config.yaml").params, ours.params)


def test_another_process_resumes_a_run_of_own_components(mine, elsewhere, capsys):
    first = raylfl.run("digits", [*SMALL, *OWN, "logging.id=a", "rounds=2"])
    elsewhere(mine)
    assert main(["resume", str(first.run_dir), "rounds=3"]) == 0
    assert capsys.readouterr().err == ""
    longer = torch.load(first.run_dir / "final.pt", weights_only=True)["params"]
    assert torch.equal(longer, raylfl.run("digits", [*SMALL, *SHIPPED]).params)


def test_without_its_module_a_run_cannot_be_resumed_and_the_message_says_what_is_missing(mine, elsewhere, capsys):
    first = raylfl.run("digits", [*SMALL, "algorithm.class_path=mine.Sprung", "rounds=1"])
    elsewhere(mine / "elsewhere")
    assert main(["resume", str(first.run_dir), "rounds=3"]) == 2
    said = capsys.readouterr().err
    assert "algorithm.class_path=mine.Sprung" in said
    assert "looked for in the working directory" in said


def test_a_class_that_only_this_process_can_import_causes_a_warning(mine):
    @dataclass
    class Passing(FedProx):
        """A class defined in a function."""

    result = raylfl.run("digits", [*SMALL, "rounds=1"], algorithm=Passing)
    assert "the run cannot be resumed from its config alone" in (result.run_dir / "log.txt").read_text()


def test_a_class_with_abstract_methods_is_refused(mine):
    @dataclass
    class Unfinished(Algorithm):
        """An algorithm without its methods."""

    with pytest.raises(BadConfig, match=r"Unfinished, but must be a class that defines server_step, as"):
        raylfl.run("digits", algorithm=Unfinished)


def test_each_misspelt_hook_is_warned_of_once_at_the_command_line(mine):
    (mine / "mine.py").write_text(MISSPELT)
    with pytest.warns(UserWarning, match=r"^Misspelt\.") as seen:
        assert main(["run", "ridge", "algorithm=mine.Misspelt", "rounds=1", *SMALL[2:]]) == 0
    places = [(warning.filename, warning.lineno, str(warning.message).split()[0]) for warning in seen]
    assert places == [(str(mine / "mine.py"), 5, f"Misspelt.{name}") for name in ("empty_rounds", "own_steps")]


def test_a_later_layer_with_another_class_replaces_the_group_and_a_dot_makes_a_class_path(mine):
    config = {"algorithm": {"class_path": "mine.Sprung", "mu": 0.3}}
    assert load_config(config, ["algorithm.gamma=2"]).algorithm.mu == 0.3
    assert load_config(config, ["algorithm.name=fedprox"]).algorithm.mu == 0.01
    assert load_config({"algorithm": {"name": "fedprox", "mu": 0.3}}, OWN[:1]).algorithm.mu == 0.5
    assert load_config(config, ["algorithm.name=fedprox"]).resolved["algorithm"].get("class_path") is None
    assert load_config({"algorithm": "mine.Sprung"}).resolved["algorithm"]["class_path"] == "mine.Sprung"


def test_a_component_needs_only_the_methods_without_a_default(mine, capsys):
    given = ["participation.class_path=mine.Pairs", "link.class_path=mine.Half"]
    result = raylfl.run("digits", [*SMALL, *given])
    cohorts = [json.loads(line)["cohort"] for line in (result.run_dir / "participation.jsonl").read_text().splitlines()]
    assert cohorts == [[0, 1], [1, 2], [2, 3]]
    assert main(["list", "mine"]) == 0
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("mine.")}
    assert "cannot be used: it does not define attempt" in listed["mine.Unchecked"]
    assert "Clients r and r + 1" in listed["mine.Pairs"]


@pytest.mark.parametrize("given", [{}, {"gamma": "0.5", "shrink": 0.5, "mu": 0.3}])
def test_the_saved_config_of_a_class_that_changes_its_options_has_the_given_ones(mine, given):
    config = {"base": "digits", "algorithm": {"class_path": "mine.Shrinking", **given}}
    result = raylfl.run(config, SMALL)
    saved = yaml.safe_load((result.run_dir / "config.yaml").read_text())["algorithm"]
    gamma, shrink = float(given.get("gamma", 1.0)), given.get("shrink", 0.25)
    assert (saved["gamma"], saved["shrink"]) == (gamma, shrink)
    assert result.config.algorithm.gamma == gamma * shrink
    plain = [f"algorithm={{name: fedprox, gamma: {gamma * shrink}, mu: {given.get('mu', FedProx().mu)}}}"]
    assert torch.equal(result.params, raylfl.run("digits", [*SMALL, *plain]).params)
    longer = raylfl.run("digits", [*SMALL, *plain, "rounds=5"])
    assert torch.equal(raylfl.resume(result.run_dir, ["rounds=5"]).params, longer.params)
    assert torch.equal(raylfl.run(result.run_dir / "config.yaml", ["rounds=3"]).params, result.params)


def test_an_instance_whose_class_changes_its_options_is_refused(mine):
    from mine import Shrinking

    with pytest.raises(BadConfig, match=r"Shrinking changes its option gamma when it is made.*\(algorithm.gamma=...\)"):
        raylfl.run("digits", SMALL, algorithm=Shrinking(gamma=0.5))
    assert raylfl.run("digits", [*SMALL, "algorithm.gamma=0.5"], algorithm=Shrinking).config.algorithm.gamma == 0.125


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algorithm.class_path=mine.Sprung algorithm.muu=1", "unknown key algorithm.muu; did you mean algorithm.mu?"),
        ("algorithm.class_path=mine.Sprung algorithm.mu=-1", "algorithm.mu=-1, but must be >= 0"),
        ("algorithm.class_path=mine.Sprang", "mine has no Sprang; did you mean Sprung?"),
        ("algorithm.class_path=nowhere.Sprung", "cannot import nowhere"),
        ("algorithm.class_path=mine.Other", "but must be a dataclass derived from"),
        ("algorithm.class_path=mine.Some", "but must be a dataclass derived from"),
        ("participation.class_path=mine.Unchecked", "mine.Unchecked, but must be a class that defines attempt, as the"),
        ("link.class_path=mine.Sprung", "link.class_path=mine.Sprung, but must be a dataclass derived from"),
        ("algorithm.class_path=mine.Sprung algorithm.name=fedavg", "algorithm.name=fedavg, but must be left out"),
        ("participation={name: uniform, size: 2, availability: {class_path: mine.Awoke}}", "mine.Awoke, but must be"),
        ("participation={name: uniform, size: 2, availability: {class_path: mine.Some}}", "an availability process"),
    ],
)
def test_mistakes_are_refused_with_key_value_and_remedy(mine, setting, words):
    with pytest.raises(BadConfig, match=re.escape(words)):
        load_config("digits", re.split(r" (?=[\w.]+=)", setting))
