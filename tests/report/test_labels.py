"""Labels and roles of config keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.config.identity import flatten
from raylfl.report.labels import (
    canonical,
    display,
    is_scenario,
    labels,
    method_of,
    short_keys,
    show_value,
    varying,
)
from tests.report.synthetic import config_of


def flats(*changes):
    return [flatten(config_of(change)) for change in changes]


def test_a_label_has_its_method_and_only_the_keys_that_distinguish_it():
    assert labels(flats({"algorithm.name": "fedacs"})) == ["FedACS"]
    three = flats({"algorithm.name": "focus"}, {"algorithm.name": "fedavg"}, {"algorithm.name": "mine"})
    assert labels(three) == ["FOCUS", "FedAvg", "mine"]
    given_ = flats(
        {"algorithm.name": "focus", "local.lr": 0.1},
        {"algorithm.name": "focus", "local.lr": 1e-05},
        {"algorithm.name": "fedavg", "local.lr": 0.1},
    )
    assert labels(given_) == ["FOCUS, lr=0.1", "FOCUS, lr=1e-5", "FedAvg"]


def test_a_class_of_the_user_with_the_name_of_a_method_has_its_class_path():
    own = {"algorithm.name": "FedAvg", "algorithm.class_path": "mine.FedAvg"}
    two = flats({"algorithm.name": "fedavg"}, own)
    assert labels(two) == ["FedAvg", "FedAvg (mine.FedAvg)"]
    assert [display(method_of(flat)) for flat in two] == labels(two)
    assert labels(flats(own | {"algorithm.name": "Mine"})) == ["Mine"]


def test_keys_are_called_without_their_group_unless_they_have_a_namesake():
    two = flats({"partition.alpha": 0.1}, {"partition.alpha": 0.5})
    assert labels(two) == ["alpha=0.1", "alpha=0.5"]
    for flat in two:
        flat["algorithm.alpha"] = 3
    assert labels(two) == ["partition.alpha=0.1", "partition.alpha=0.5"]
    two = flats({"partition.name": "iid"}, {"model.class_path": "some.where.MLP"})
    assert labels(two) == ["model=LeNet5", "model=MLP"]
    assert labels(flats({"partition.name": "iid"}, {})) == ["partition=iid", "partition=dirichlet"]
    short = {"partition.name": "partition", "model.class_path": "model"}
    assert short_keys(list(short), []) == short
    with_clip, without = flats({"local.clip_norm": 10}, {})
    del without["local.clip_norm"]
    assert labels([with_clip, without]) == ["clip_norm=10", "clip_norm=none"]


values = st.one_of(st.integers(0, 3), st.sampled_from([0.1, 0.5, None, "a", [1, 2, 3, 4, 5], [1, 2, 4, 4, 5]]))
configs = st.dictionaries(st.sampled_from(["algorithm.name", "local.lr", "data.x", "x.lr"]), values)


def test_a_value_of_thousands_of_characters_is_shortened_in_labels():
    first, second = labels([{"partition.path": "x" * 5000 + end} for end in "ab"])
    assert first.startswith("path=xxx")
    assert first.endswith("a")
    assert second.endswith("b")
    assert len(first) < 80


@given(st.lists(configs, min_size=1, max_size=6, unique_by=canonical))
def test_distinct_configs_get_distinct_labels(given_):
    known = {canonical({k: v for k, v in flat.items() if v is not None}) for flat in given_}
    if len(known) == len(given_):  # null and absent mean the same
        assert len(set(labels(given_))) == len(given_)


@pytest.mark.parametrize(
    ("key", "scenario"),
    [
        ("partition.alpha", True),
        ("participation.size", True),
        ("local.steps", True),
        ("local.steps.linspace", True),
        ("num_clients", True),
        ("local.lr", False),
        ("local.clip_norm", False),
        ("algorithm.gamma", False),
        ("algorithm.name", False),
    ],
)
def test_what_is_tuned_is_no_part_of_the_scenario(key, scenario):
    assert is_scenario(key) is scenario


def test_varying_keys_are_sorted_by_role():
    two = flats(
        {"algorithm.name": "focus", "local.lr": 0.1, "partition.alpha": 0.1, "num_clients": 8},
        {"algorithm.name": "sfl", "local.lr": 0.2, "partition.alpha": 0.5, "num_clients": 9},
    )
    assert varying(two) == ["algorithm.name", "num_clients", "partition.alpha", "local.lr", "algorithm.gamma"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "1e-5"),
        (0.25, "0.25"),
        (None, "none"),
        (True, "true"),
        ({"name": "iid", "p": 0.5}, "{name: iid, p: 0.5}"),
        ([1, 3, 5, 7, 39], "[1, 3, …, 39]"),
    ],
)
def test_values_are_short(value, text):
    assert show_value(value) == text
