"""The identity of a run, for resuming, pooling and caching, key by key."""

import dataclasses

import pytest

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.groups.top import TopConfig
from raylfl.config.identity import LEFT_OUT, OPTIONAL, RUNTIME_FREE, defining, flatten, identity
from raylfl.config.load import load_config

MADE = {"data": {"name": "mnist", "init_args": {"root": "/elsewhere", "download": False}}, "model": "mlp"}


PINNED = {"runtime": {"placement": "pinned"}}


@pytest.fixture(scope="module")
def resolved():
    ring = {"name": "ring", "edge_latency": 1, "edge_bandwidth": 1}
    return load_config({**MADE, "num_clients": 4, "algorithm": "focus", "topology": ring, **PINNED}).resolved


@pytest.mark.parametrize("purpose", LEFT_OUT)
def test_exactly_the_keys_that_do_not_count_are_left_out(purpose, resolved):
    whole, kept = flatten(resolved), flatten(identity(resolved, of=purpose))
    gone = {key for key in whole if any(f"{key}.".startswith(f"{place}.") for place in LEFT_OUT[purpose])}
    gone |= {key for key in OPTIONAL if whole.get(key) is None}
    assert kept.items() == {key: value for key, value in whole.items() if key not in gone}.items()
    assert gone


@pytest.mark.parametrize(
    ("settings", "later", "chosen", "key"),
    [
        ([], "runtime.placement", "runtime.placement=pinned", "runtime.placement"),
        ([], "model.buffers", "model.buffers=[]", "model.buffers"),
        ([], "topology.bandwidth", "topology.latency=1", "topology.latency"),
        (["algorithm=dsgd", "topology=grid"], "topology.edge_", "topology.edge_latency=1", "topology.edge_latency"),
    ],
)
@pytest.mark.parametrize("purpose", LEFT_OUT)
def test_runs_recorded_before_there_was_a_key_keep_their_identity(purpose, settings, later, chosen, key):
    usual = load_config(MADE, settings).resolved
    older = {
        group: {k: v for k, v in value.items() if not f"{group}.{k}".startswith(later)}
        if isinstance(value, dict)
        else value
        for group, value in usual.items()
    }
    assert older != usual
    assert identity(usual, of=purpose) == identity(older, of=purpose)
    assert key not in flatten(identity(usual, of=purpose))
    new = flatten(identity(load_config(MADE, [*settings, chosen]).resolved, of=purpose))
    assert (key in new) == (key.startswith(("model", "topology")) or purpose != "group")


@pytest.mark.parametrize(
    ("key", "counts"),
    [
        ("local.lr", {"resume", "group", "digest"}),
        ("algorithm.name", {"resume", "group", "digest"}),
        ("runtime.threads", {"resume", "digest"}),
        ("runtime.workers", set()),
        ("rounds", {"group", "digest"}),
        ("eval.every", {"group", "digest"}),
        ("seed", {"resume"}),
        ("name", set()),
        ("logging.dir", set()),
        ("checkpoint.every", set()),
        ("data.init_args.root", {"resume", "group"}),
        ("data.name", {"resume", "group", "digest"}),
    ],
)
def test_a_key_counts_where_results_depend_on_it(key, counts, resolved):
    flat = flatten(resolved)
    assert key in flat or key == "data.name"
    key = "data.class_path" if key not in flat else key
    assert {purpose for purpose in LEFT_OUT if key in flatten(identity(resolved, of=purpose))} == counts


def test_every_key_that_is_left_out_is_one_of_the_config_and_those_of_runtime_are_free_or_change_bits(resolved):
    known = {*flatten(resolved), *(key.partition(".")[0] for key in flatten(resolved))}
    assert {place for places in LEFT_OUT.values() for place in places} <= known
    assert set(RUNTIME_FREE) <= {field.name for field in dataclasses.fields(RuntimeConfig)}
    assert {"name", "seed", "rounds"} <= {field.name for field in dataclasses.fields(TopConfig)}
    bits = {"placement", "processes_per_worker", "threads", "precision", "micro_cohort", "vectorize", "graphs"}
    bits |= {"compile", "layout"}
    names = {field.name for field in dataclasses.fields(RuntimeConfig)}
    assert names == {*RUNTIME_FREE, *bits}
    assert not bits & set(RUNTIME_FREE)


def test_a_group_with_nothing_left_is_left_out_and_an_empty_one_stays():
    config = {"data": {"init_args": {"root": "/a"}}, "model": {"init_args": {}}}
    assert identity(config, of="digest") == {"model": {"init_args": {}}}
    assert defining({"runtime": {"workers": 2, "threads": 1}, "rounds": 3, "seed": 1}) == {
        "runtime": {"threads": 1},
        "seed": 1,
    }
