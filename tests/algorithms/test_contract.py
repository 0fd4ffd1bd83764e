"""Every registered algorithm and variant passes every check of the contract, and is documented."""

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm
from raylfl.core.costs import floats_in
from raylfl.errors import BadValue
from raylfl.testing import CHECKS
from raylfl.testing.bench import D, after_all, rounds_for
from tests.shares import also

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf" / "algorithm"
CHOICES: dict[str, list[dict[str, Any]]] = {  # beyond the defaults: each option that changes the computation
    "dsgd": [{"order": "cta"}, {"order": "dgd"}],
    "fedacs": [{"estimate": "ema"}],
    "fedau": [{"cutoff": 2, "normalize": True}],
    "fedaware": [{"warmup": "fedavg"}, {"warmup": "all"}, {"normalize": True}],
    "fednova": [{"normalise": "sent"}],
    "fedvarp": [{"lost": "reuse"}],
    "focus": [{"gamma": 0.01}],
    "gradient_tracking": [{"order": "atc"}],
    "kgt": [{"gamma": 0.5}],
    "led": [{"lazy": False}, {"beta": 0.5}],
    "mifa": [{"init": "all", "memory": "gradients"}],
    "nids": [{"lazy": False}],
    "optimal_sampling": [{"norms": "stale"}],
    "scaffnew": [{"p": 0.3}],
    "scaffold": [{"option": 1}, {"uplink": "update"}, {"divisor": 10}, {"variate_divisor": "received"}],
}


def options_of(name: str) -> dict[str, Any]:
    """The options in conf/algorithm/NAME.yaml."""
    group = yaml.safe_load((CONF / f"{name}.yaml").read_text())["algorithm"]
    assert group.pop("name") == name
    return group


def variants() -> list[Any]:
    """Every registered algorithm with the options of its yaml; in `make test-all` also with each of its choices."""
    out = []
    for entry in ALGORITHMS:
        for choice in [{}, *CHOICES.get(entry.name, [])]:
            algorithm = entry.cls(**{**options_of(entry.name), **choice})
            name = "-".join([entry.name, *(f"{k}={v}" for k, v in choice.items())])
            out.append((also if choice else pytest.param)(algorithm, id=name))
    return out


@pytest.mark.parametrize("algorithm", variants())
def test_it_keeps_the_contract(algorithm: Algorithm):
    for check in CHECKS.values():
        check(algorithm)


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_its_yaml_teaches_every_option_at_its_default(name: str):
    first = (CONF / f"{name}.yaml").read_text().splitlines()[0]
    assert re.fullmatch(rf"# raylfl run digits algorithm\.name={name}( algorithm\.\w+=\S+)*", first)
    fields = {f.name: f.default for f in dataclasses.fields(ALGORITHMS.get(name).cls)}
    options = options_of(name)
    assert options.keys() == fields.keys()
    required = {"cut"}  # without a default that fits every model
    assert {k: v for k, v in options.items() if k not in required} == {
        k: v for k, v in fields.items() if k not in required
    }


def documented() -> dict[str, list[str]]:
    """The rows of the table in docs/algorithms.md by name: cells."""
    (table,) = re.findall(r"\n\| name \| paper \|.*?\n\n", (ROOT / "docs" / "algorithms.md").read_text(), re.DOTALL)
    rows = [re.split(r"(?<!\\)\|", line.strip("|")) for line in table.split("\n") if "| `" in line]
    return {row[0].strip(" `"): [cell.strip() for cell in row] for row in rows}


@pytest.mark.parametrize("name", [n for n in ALGORITHMS.names() if not options_of(n).get("cut")])
def test_the_docstring_of_an_algorithm_has_its_traffic(name: str):
    """`Sent` has both broadcasts down, and what goes up or along an edge, in units of d."""
    text, algorithm = documented()[name][4], ALGORITHMS.get(name).cls()
    run = after_all(algorithm)
    up, _ = run.uploads(rounds_for(algorithm)[0])
    down = floats_in(algorithm.broadcast(run.server)) + floats_in(algorithm.second_broadcast(run.server))
    sent = algorithm.sent_floats(up)
    if run.merged:
        down, sent = 0, 0
    said = [re.search(rf"(\d*)d (?:\+ 1 )?(?:floats )?{way}", text) for way in ("down", "(?:up|along)")]
    assert [int(match[1] or 1) if match else 0 for match in said] == [down // D, sent // D]


@pytest.mark.parametrize(("name", "key", "value"), [("ssl", "cut", None), ("splitfed", "cut", 3.0)])
def test_an_option_that_cannot_be_is_refused_by_name(name: str, key: str, value: Any):
    """Of limits and choices see tests/test_options.py, and docs/algorithms.md, which has them from the code."""
    with pytest.raises(BadValue) as refused:
        ALGORITHMS.get(name).cls(**{key: value})
    assert refused.value.key == key


def test_variants_differ():
    """A choice that changes nothing would test nothing."""
    for a, b in itertools.combinations([p.values[0] for p in variants()], 2):
        assert type(a) is not type(b) or a != b


def test_a_misspelt_method_or_trait_is_named():
    with pytest.warns(UserWarning, match=r"Near\.startpoint is no method .*; did you mean start_point\?") as caught:

        class Near(Algorithm):
            def startpoint(self, broadcast, client_state):
                return broadcast["x"]

    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"Trait\.own_steps is no method .*; did you mean own_step\?"):

        class Trait(Algorithm):
            own_steps = True
