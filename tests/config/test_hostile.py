"""Damaged and hostile input ends in one message, soon."""

import json
import os
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from raylfl.config.load import escape, load_config
from raylfl.config.text import parse
from raylfl.errors import BadConfig
from raylfl.heterogeneity.partition.given import load
from raylfl.heterogeneity.trace import read_trace

BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds: 1\nlocal: {lr: 1}\nrounds: 2\n", "rounds occurs twice, the second time in line 3"),
        ("local: {lr: 1, lr: 2}", "lr occurs twice"),
        (BOMB, "more than 1,000,000 values"),
        ("a: &a [*a]", "more than 50 deep"),
        ("a: " + "[" * 3000, "more than 50 deep"),
        ("a: " + "{b: " * 60 + "1" + "}" * 60, "more than 50 deep"),
        (f"seed: {DIGITS}", "5000 digits"),
        ("a: !!python/object:os.system x", "constructor"),
        ("- 1", "must hold keys and values"),
    ],
    ids=["twice", "twice within", "bomb", "circle", "deep", "deep mapping", "digits", "object", "list"],
)
def test_a_hostile_file_is_refused_with_its_name(tmp_path, text, words):
    (tmp_path / "bad.yaml").write_text(text)
    began = time.process_time()
    with pytest.raises(BadConfig, match=r"bad\.yaml") as caught:
        load_config(tmp_path / "bad.yaml")
    assert words in str(caught.value)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("value", ["{a: 1, a: 2}", DIGITS, "[" * 2000, "\0"], ids=["twice", "digits", "deep", "nul"])
def test_a_hostile_value_is_refused(value):
    with pytest.raises(BadConfig, match="the value is not yaml"):
        load_config("digits", [f"local.steps={value}"])


def test_merge_keys_are_no_duplicates():
    assert parse("a: &x {b: 1}\nc: {<<: *x, b: 2}\nd: &y {<<: *x, b: 3}\ne: {<<: *y}")["e"] == {"b": 3}


def test_a_deleted_working_directory_is_reported(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    with pytest.raises(BadConfig, match="working directory does not exist any more"):
        load_config("digits")


@pytest.mark.parametrize("key", ["local.steps", "local.epochs", "local.batch_size"])
def test_counts_that_no_run_can_reach_are_refused(key):
    for value in (2**62, 10**30, "{uniform: [1, 1e18]}"):
        with pytest.raises(BadConfig, match="at most 1e9"):
            load_config({}, [f"{key}={value}"])


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "MY_SECRET", "db_password"])
def test_secrets_of_the_environment_are_not_written_into_configs(name, monkeypatch):
    monkeypatch.setenv(name, "hunter2")
    for source in (
        {"logging": {"project": f"${{oc.env:{name}}}"}},
        {"logging": {"project": f"x-${{ oc.env: {name}, none}}"}},
        {"data": {"init_args": {"deep": [{"list": f"${{oc.env:{name}}}"}]}}},
        OmegaConf.create({"logging": {"project": f"${{oc.env:{name}}}"}}),
    ):
        with pytest.raises(BadConfig, match="saved with their runs") as caught:
            load_config(source)
        assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("WHICH", name)
    with pytest.raises(BadConfig, match="saved with their runs"):
        load_config({"logging": {"project": "${oc.env:${oc.env:WHICH}}"}})
    monkeypatch.setenv("PROJECT", "mine")
    assert load_config({"logging": {"project": "${oc.env:PROJECT}"}}).logging.project == "mine"


@given(st.text(alphabet="a$\\{}:x.,'\"", max_size=8))
def test_a_literal_stays_itself_however_often_it_is_resolved(text):
    written = load_config({"logging": {"project": escape(text)}})
    again = load_config(yaml.safe_load(yaml.safe_dump(load_config(written.resolved).resolved)))
    assert again.logging.project == written.logging.project == text
    assert again.resolved == written.resolved


def test_an_escaped_interpolation_is_a_literal():
    config = load_config(
        {"logging": {"project": r"\${seed}"}, "data": {"class_path": "a.B", "init_args": {"path": r"a\\\${seed}"}}}
    )
    assert config.logging.project == "${seed}"
    assert config.data.init_args == {"path": r"a\${seed}"}
    again = load_config(config.resolved)
    assert (again.logging.project, again.data.init_args) == (config.logging.project, config.data.init_args)
    nested = OmegaConf.create({"seed": 3, "run": {"logging": {"project": r"\${seed}", "id": "r${seed}"}}})
    assert load_config(nested.run).logging.project == "${seed}"
    assert load_config(nested.run).logging.id == "r3"


# -- files of indices and of rounds ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"0": [1], "1": [2], "0": [3]}', "0 occurs twice"),
        ('{"0": [' + DIGITS + "]}", "digits"),
        ("[" * 100_000, "nested too deeply"),
        ('{"0": ' + "[" * 100_000, "nested too deeply"),
        ('{"0": [1e3]}', "no list of whole numbers"),
    ],
    ids=["twice", "digits", "deep", "deep client", "float"],
)
def test_a_hostile_partition_file_is_refused(tmp_path, text, words):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(BadConfig, match=words):
        load(tmp_path / "p.json")


ROW = {"round": 0, "cohort": [0], "draws": [1], "received": [True], "steps": [1]}


@pytest.mark.parametrize(
    "line",
    [
        *(json.dumps({**ROW, key: [10**30]}) for key in ("cohort", "draws", "steps")),
        json.dumps({**ROW, "round": 10**30}),
        json.dumps(ROW).replace("[1]", f"[{DIGITS}]"),
        "[" * 100_000,
        '{"round": ' + "[" * 100_000,
    ],
    ids=["cohort", "draws", "steps", "round", "digits", "deep", "deep round"],
)
def test_a_hostile_trace_is_refused_with_its_line(tmp_path, line):
    (tmp_path / "t.jsonl").write_text(json.dumps({**ROW, "round": 1}) + "\n" + line + "\n")
    with pytest.raises(BadConfig, match="line 2"):
        read_trace(tmp_path / "t.jsonl")
