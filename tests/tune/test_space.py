"""The search space: domains, conditions, draws and refusals, without Ray."""

import math
import re

import numpy as np
import pytest

from raylfl.errors import BadConfig
from raylfl.tune.space import Domain, Space, comparable, look_up

BASE = {"algorithm": {"name": "fedavg"}, "local": {"lr": 0.1}, "partition": {"name": "iid"}}


def points(content, samples=1, seed=0, base=BASE):
    return Space.parse(content).points(samples, seed, base)


def test_an_inactive_key_neither_appears_nor_multiplies():
    found = points(
        {
            "algorithm.name": {"grid": ["fedavg", "focus", "sfl"]},
            "algorithm.gamma": {"grid": [0.1, 1.0], "when": {"algorithm.name": ["focus"]}},
        }
    )
    assert found == [
        {"algorithm.name": "fedavg"},
        {"algorithm.name": "focus", "algorithm.gamma": 0.1},
        {"algorithm.name": "focus", "algorithm.gamma": 1.0},
        {"algorithm.name": "sfl"},
    ]


def test_of_several_alternatives_the_first_that_applies_counts():
    found = points(
        {
            "local.lr": [{"grid": [0.003], "when": {"algorithm.name": "sfl"}}, {"grid": [0.1, 0.3]}],
            "algorithm.name": {"grid": ["sfl", "fedavg"]},  # after the key that refers to it
        }
    )
    assert [(p["algorithm.name"], p["local.lr"]) for p in found] == [("sfl", 0.003), ("fedavg", 0.1), ("fedavg", 0.3)]


def test_a_condition_may_refer_to_the_config_and_to_keys_of_a_group():
    space = {"local.momentum": {"grid": [0.9], "when": {"algorithm.name": "fedavg"}}}
    assert points(space) == [{"local.momentum": 0.9}]
    assert points(space, base={"algorithm": {"name": "focus"}}) == [{}]
    found = points(
        {
            "partition": {"grid": [{"name": "iid"}, {"name": "dirichlet", "alpha": 0.1}, "natural"]},
            "local.lr": {"grid": [1, 2], "when": {"partition.name": ["dirichlet", "natural"]}},
        }
    )
    assert [p.get("local.lr") for p in found] == [None, 1, 2, 1, 2]
    assert look_up("partition.alpha", {"partition": {"alpha": 0.1}}, BASE) == 0.1
    assert look_up("partition.alpha", {"partition.alpha": 0.5}, BASE) == 0.5
    assert look_up("no.such.key", {}, BASE) is None


def test_conditions_chain():
    found = points(
        {"c": {"grid": [7], "when": {"b": 2}}, "b": {"grid": [1, 2], "when": {"a": "y"}}, "a": {"grid": ["x", "y"]}}
    )
    assert found == [{"a": "x"}, {"a": "y", "b": 1}, {"a": "y", "b": 2, "c": 7}]


def test_conditions_in_a_circle_are_refused():
    with pytest.raises(BadConfig, match=r"a -> b -> a|b -> a -> b"):
        points({"a": {"grid": [1], "when": {"b": 1}}, "b": {"grid": [1], "when": {"a": 1}}})


def test_draws_are_a_function_of_seed_key_and_number_alone():
    lr = {"local.lr": {"loguniform": [1e-3, 1.0]}}
    alone = points(lr, samples=5)
    assert alone == points(lr, samples=5)
    assert alone[:3] == points(lr, samples=3)
    assert alone != points(lr, samples=5, seed=1)
    beside = points({"algorithm.name": {"grid": ["fedavg", "focus"]}, **lr, "z": {"uniform": [0, 1]}}, samples=5)
    for name in ("fedavg", "focus"):  # all algorithms get the same learning rates
        assert [p["local.lr"] for p in beside if p["algorithm.name"] == name] == [p["local.lr"] for p in alone]


def test_samples_repeat_no_point_in_which_nothing_is_drawn():
    space = {
        "algorithm.name": {"grid": ["fedavg", "focus"]},
        "algorithm.gamma": {"uniform": [0, 1], "when": {"algorithm.name": "focus"}},
    }
    found = points(space, samples=4)
    assert sum(p["algorithm.name"] == "fedavg" for p in found) == 1
    assert sum(p["algorithm.name"] == "focus" for p in found) == 4


@pytest.mark.parametrize(
    ("domain", "mean", "low", "high"),
    [({"uniform": [2, 6]}, 4.0, 2, 6), ({"randint": [0, 5]}, 2.0, 0, 4), ({"choice": [0, 10]}, 5.0, 0, 10)],
)
def test_draws_have_the_distribution_they_name(domain, mean, low, high):
    drawn = [Domain.parse("k", domain).draw(np.random.default_rng(k)) for k in range(2000)]
    assert np.mean(drawn) == pytest.approx(mean, abs=4 * (high - low) / math.sqrt(12 * 2000) * 1.8)  # 4 standard errors
    assert (min(drawn), max(drawn)) == pytest.approx((low, high), abs=0.05 * (high - low))
    assert all(low <= value <= high for value in drawn)


def test_loguniform_is_uniform_in_the_exponent_and_keeps_four_digits():
    drawn = [Domain.parse("k", {"loguniform": [1e-4, 1]}).draw(np.random.default_rng(k)) for k in range(2000)]
    exponents = np.log10(drawn)
    assert exponents.mean() == pytest.approx(-2.0, abs=4 * 4 / math.sqrt(12 * 2000))
    assert all(value == float(f"{value:.4g}") and 1e-4 <= value <= 1 for value in drawn)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"grid": []}, "space.local.lr.grid=[], but must be a list"),
        ({"grd": [1]}, "unknown key space.local.lr.grd; did you mean space.local.lr.grid?"),
        ({"grid": [1], "choice": [2]}, "exactly one of"),
        (0.1, "one of grid, choice"),
        ([], "space.local.lr=[], but must be one of grid, choice"),
        ({"uniform": [2, 1]}, "low < high"),
        ({"uniform": [1]}, "low < high"),
        ({"uniform": ["a", "b"]}, "low < high"),
        ({"loguniform": [0, 1]}, "0 < low"),
        ({"randint": [1, 2.5]}, "whole numbers"),
        ({"randint": [1, float("inf")]}, "finite numbers"),
        ({"randint": [1, 2**63]}, "finite numbers"),
        ({"uniform": [0, float("inf")]}, "finite numbers"),
        ({"uniform": [float("nan"), 1]}, "finite numbers"),
        ({"uniform": [0, 10**400]}, "finite numbers"),
        ({"grid": [1], "when": "focus"}, "config keys and the values"),
    ],
)
def test_what_a_domain_cannot_be_is_said_with_its_place(content, words):
    with pytest.raises(BadConfig, match=re.escape(words)):
        Space.parse({"local.lr": content})


def test_what_is_tuned_is_compared_and_worlds_and_algorithms_are_not():
    one = {"algorithm.name": "focus", "partition.alpha": 0.1, "local.lr": 0.1, "algorithm.gamma": 1}
    assert comparable(one) == comparable({**one, "local.lr": 0.3, "algorithm.gamma": 2})
    assert comparable(one) != comparable({**one, "algorithm.name": "fedavg"})
    assert comparable(one) != comparable({**one, "partition.alpha": 1.0})
    assert comparable({"partition": {"alpha": 0.1, "name": "d"}}) != comparable(
        {"partition": {"alpha": 0.2, "name": "d"}}
    )
