"""The expansion of interpolations is bounded, whatever form they have; usual ones are not affected."""

import time

import pytest
from omegaconf import OmegaConf

from raylfl.config.load import compose, load_config
from raylfl.errors import BadConfig

KEYS = range(1, 40)


def chain(form, first="x" * 10):
    """x1 to x39, each made of twice the one before."""
    return {"x0": first} | {f"x{k}": form.format(k - 1) for k in KEYS} | {"name": "${x39}"}


BOMBS = {
    "text": chain("${{x{0}}}${{x{0}}}"),
    "text between": chain("${{x{0}}}-${{x{0}}}"),
    "select": chain("${{oc.select:x{0}}}${{oc.select:x{0}}}"),
    "select of a default": chain("${{oc.select:nothing,${{x{0}}}}}${{oc.select:nothing,${{x{0}}}}}"),
    "relative": {"a": chain("${{.x{0}}}${{.x{0}}}")},
    "relative upwards": {"x0": "xx", "a": {f"x{k}": f"${{..b.x{k}}}" for k in KEYS}, "b": {"x1": "${..x0}${..x0}"}}
    | {"b": {"x1": "${x0}"} | {f"x{k}": f"${{..a.x{k - 1}}}${{..a.x{k - 1}}}" for k in KEYS if k > 1}},
    "groups": {"x0": {"a": 1}} | {f"x{k}": {"a": f"${{x{k - 1}}}", "b": f"${{x{k - 1}}}"} for k in KEYS},
    "lists": {"x0": [1]} | {f"x{k}": [f"${{x{k - 1}}}", f"${{x{k - 1}}}"] for k in KEYS},
    "by index": {"x": ["xx", *(f"${{x.{k}}}${{x.{k}}}" for k in range(39))]},
    "in brackets": {"x0": "xx"} | {f"x{k}": f"${{x{k - 1}}}${{[x{k - 1}]}}" for k in KEYS},
    "nested": {"i": "x0", "a": {"x0": "xx"}} | {"b": chain("${{a.${{i}}}}${{b.x{0}}}${{b.x{0}}}")},
    "a long fan": {"x0": "x" * 100} | {f"x{k}": f"${{x{k - 1}}}" * 100 for k in range(1, 5)},
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_config_that_expands_to_more_than_a_million_characters_is_refused_at_once(what):
    started = time.process_time()
    for call in (compose, load_config, lambda config: load_config(OmegaConf.create(config))):
        with pytest.raises(BadConfig, match=r"expand to more than 1,000,000 characters|refers to itself"):
            call(BOMBS[what])
    assert time.process_time() - started < 5


@pytest.mark.parametrize("text", ["${${name}}", "${${name}.x}", "${oc.select:${name}}"])
def test_an_interpolation_that_may_be_any_part_is_refused(text):
    with pytest.raises(BadConfig, match="may be any part of the config"):
        compose({"name": "x", "x": text})


@pytest.mark.parametrize("config", [{"a": "${b}", "b": "${a}"}, {"a": {"b": "${a}"}}, {"a": "${a}"}])
def test_a_value_that_refers_to_itself_is_refused(config):
    with pytest.raises(BadConfig, match="refers to itself"):
        compose(config)


def test_a_chain_of_thousands_of_interpolations_is_refused_or_resolved():
    config = {"x0": "a"} | {f"x{k}": f"${{x{k - 1}}}" for k in range(1, 5000)}
    with pytest.raises(BadConfig):
        compose(config)


USUAL = {
    "seed": 3,
    "name": "run-${seed}-${local.lr}",
    "local": {"lr": 0.1, "copy": "${.lr}", "all": "${..algorithm}", "other": "${oc.select:local.nothing, 0.5}"},
    "algorithm": {"name": "focus", "gamma": "${local.lr}"},
    "plans": {"small": [1, 2], "large": {"a": 1}},
    "which": "small",
    "plan": "${plans.${which}}",
    "first": "${plans.small[0]}",
    "literal": "\\${seed}",
    "default": "${oc.select:nothing, ${seed}}",
    "long": "x" * 200_000,
    "twice": "${long}${long}",
}


def test_usual_interpolations_have_omegaconfs_values():
    assert compose(USUAL) == OmegaConf.to_container(OmegaConf.create(USUAL), resolve=True)
