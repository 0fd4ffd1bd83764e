"""Settings mean the same on a command line, in any order and nesting, as in yaml."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.config.layers import MERGED, NAMED
from raylfl.config.load import compose, load_config
from raylfl.errors import BadConfig
from raylfl.tune.spec import load_sweep

BASES = ["digits", "quadratics", {}, {"algorithm": {"name": "fedprox", "mu": 0.7}, "local": {"lr_schedule": "sqrt"}}]
SETTINGS = {  # for each group, settings that are valid together
    "algorithm": [
        {"name": "fedprox", "mu": 0.1, "gamma": 2.0},
        {"name": "focus", "gamma": 0.5},
        {"name": "fedavg", "aggregate": "weighted"},
        {"name": "sfl"},
        {"gamma": 0.25},
    ],
    "partition": [{"name": "exdir", "classes": 3, "alpha": 1e-2}, {"name": "dirichlet", "alpha": 0.3}],
    "participation": [
        {"name": "uniform", "size": 4, "availability": {"name": "markov", "p_on": 0.3, "p_off": [0.1, 0.2]}},
        {"name": "uniform", "fraction": 0.5, "availability": {"name": "bernoulli"}},
        {"name": "bernoulli", "p": {"linspace": [0.1, 0.9]}},
    ],
    "link": [{"name": "bernoulli", "q": 0.1}, {"name": "perfect"}],
    "local": [
        {"lr_schedule": {"name": "sqrt", "period": 10}, "lr": 1e-3},
        {"lr_schedule": {"name": "exponential", "decay": 0.5}, "steps": {"uniform": [1, 5]}},
        {"lr_schedule": {"name": "sqrt"}, "batch_size": "full"},
    ],
    "model": [
        {"name": "lenet5", "init_args": {"padding": 2}},
        {"class_path": "a.B", "init_args": {"a": {"b": 1}, "c": [1, "x y"]}},
    ],
    "data": [{"name": "mnist", "init_args": {"root": "some where", "download": True}}, {"init_args": {}}],
    "logging": [{"loggers": ["csv", "wandb"], "id": "mine"}],
    "rounds": [7],
    "name": ["null"],
}


@st.composite
def command_lines(draw):
    """(settings in yaml's form, the same settings as key=value items)."""
    groups = draw(st.lists(st.sampled_from(sorted(SETTINGS)), unique=True, min_size=1, max_size=4))
    settings = {group: draw(st.sampled_from(SETTINGS[group])) for group in groups}
    items = [item for group in groups for item in draw(written((group,), settings[group]))]
    return settings, draw(st.permutations(items))


@st.composite
def written(draw, place, value):
    """The items of a value at a place: as a whole, or key by key, each written in one of several ways."""
    key = ".".join(place)
    if place in MERGED and isinstance(value, dict) and value and draw(st.booleans()):
        keys = draw(st.permutations(sorted(value)))
        apart = keys[: draw(st.integers(0, len(keys)))]
        items = [item for inner in apart for item in draw(written((*place, inner), value[inner]))]
        rest = {inner: value[inner] for inner in value if inner not in apart}
        return items + (draw(written(place, rest)) if rest and apart else [f"{key}={flow(rest)}"] if rest else [])
    if place in NAMED and isinstance(value, dict) and set(value) == {"name"} and draw(st.booleans()):
        return [f"{key}={value['name']}"]
    if place[-1] == "name" and place[:-1] in NAMED and draw(st.booleans()):
        return [f"{'.'.join(place[:-1])}={value}"]
    return [f"{key}={flow(value)}"]


def flow(value):
    return json.dumps(value) if not isinstance(value, str) or value in ("null",) or " " in value else value


@given(st.sampled_from(BASES), command_lines())
def test_any_order_and_nesting_of_a_command_line_means_the_same_as_yaml(base, said):
    settings, items = said
    layered = {} if isinstance(base, str) else dict(base)
    assert compose(base, items) == compose(base, [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    if not layered:
        assert compose({"base": base or [], **settings}) == compose(base, items)


def test_short_names_below_do_not_hide_from_the_layers_above(tmp_path):
    (tmp_path / "low.yaml").write_text("local: {lr_schedule: sqrt}\nalgorithm: {gamma: 0.5}\n")
    config = load_config(tmp_path / "low.yaml", ["local.lr_schedule.period=10", "algorithm=fedavg"])
    assert (config.local.lr_schedule.name, config.local.lr_schedule.period) == ("sqrt", 10)
    assert config.algorithm.gamma == 0.5  # fedavg is the default


def test_what_contradicts_itself_is_refused_and_the_last_of_a_key_counts():
    for items in (["local.steps=3", "local.steps.uniform=[1,2]"], ["local.steps.uniform=[1,2]", "local.steps=3"]):
        with pytest.raises(BadConfig, match="contradict each other"):
            load_config("digits", items)
    assert load_config("digits", ["rounds=1", "local={lr: 1}", "rounds=2", "local.lr=2"]).local.lr == 2
    assert load_config("digits", ["local.steps={uniform: [1, 2]}", "local.steps={linspace: [1, 2]}"]).local.steps == {
        "linspace": [1, 2]
    }


def test_a_sweeps_own_groups_take_a_name_and_options_in_any_order():
    items = ["scheduler=asha", "scheduler.grace=5", "algorithm=fedprox", "algorithm.mu=0.3", "local.lr_schedule=sqrt"]
    for order in (items, items[::-1]):
        sweep = load_sweep("digits_lr", order)
        assert sweep.options.scheduler == {"name": "asha", "grace": 5}
        assert sweep.base["algorithm"] == {"name": "fedprox", "mu": 0.3}
        assert sweep.base["local"]["lr_schedule"] == {"name": "sqrt"}


@pytest.mark.parametrize(
    ("items", "remedy"),
    [
        (["local.steps={uniform:", "[1,", "5]}"], "quote arguments"),
        (["local.steps={uniform: [1, 5"], "quote arguments"),
        (["logging.loggers=[csv,", "wandb]"], "quote arguments"),
    ],
)
def test_missing_quotes_are_named(items, remedy):
    with pytest.raises(BadConfig, match=re.escape(remedy)):
        load_config("digits", items)
