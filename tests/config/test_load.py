"""Configs: composition, short names, refusals with the nearest key; odd names, numbers and URLs."""

import re

import numpy as np
import pytest
import yaml

from raylfl.cli import main
from raylfl.config.components import build, changed_option
from raylfl.config.find import conf_roots, find_config
from raylfl.config.load import compose, load_config
from raylfl.config.registries import REGISTRIES
from raylfl.config.schema import NAMED_GROUPS
from raylfl.config.text import dump, parse
from raylfl.errors import BadConfig
from raylfl.heterogeneity.participation.uniform import Weighted

EDGES = ("edges.txt", "0 1  # an edge\n1 2\n")
GRAPH = ("topology.jsonl", '{"round": 0, "directed": false, "edges": [[0, 1], [1, 0]], "arrives": [true, false]}\n')
TRACE = ("participation.jsonl", '{"round": 0, "cohort": [0], "draws": [1], "received": [true], "steps": [1]}\n')
PARTITION = ("partition.json", '{"0": [0], "1": [1]}')
SHIPPED = sorted({p for root in conf_roots() for p in root.rglob("*.yaml") if "sweep" not in p.parts})


def write(folder, name, content):
    path = folder / name
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        ({"uniform": np.array([0.1, 0.5])}, {"uniform": [0.1, 0.5]}),
        ({"uniform": [np.float64(0.1), np.float64(0.5)]}, {"uniform": [0.1, 0.5]}),
    ],
)
def test_numbers_and_arrays_of_numpy_are_those_of_python(value, plain):
    resolved = load_config({"system": {"seconds_per_step": value}}).resolved
    assert resolved["system"]["seconds_per_step"] == plain


def test_a_value_of_another_type_is_refused_with_its_key():
    with pytest.raises(BadConfig, match=r"^config not understood: local.lr: Value 'set' is not"):
        load_config({"local": {"lr": {1, 2}}})


def test_later_layers_win_and_the_dotlist_wins_over_all(tmp_path):
    write(tmp_path, "low.yaml", {"rounds": 1, "seed": 1, "local": {"lr": 0.5, "steps": 2}})
    write(tmp_path, "mid.yaml", {"base": "low", "rounds": 2, "local": {"lr": 0.25}})
    top = write(tmp_path, "top.yaml", {"base": ["low", "mid.yaml"], "rounds": 3})
    config = load_config(top, ["local.momentum=0.5", "rounds=4"])
    assert (config.top.rounds, config.top.seed) == (4, 1)
    assert (config.local.lr, config.local.steps, config.local.momentum) == (0.25, 2, 0.5)


def test_a_base_of_the_dotlist_lies_between_the_file_and_the_rest_of_the_dotlist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "low.yaml", {"rounds": 1, "seed": 1, "local": {"lr": 0.5, "steps": 2}})
    write(tmp_path, "over.yaml", {"rounds": 2, "seed": 3, "participation": {"name": "uniform", "size": 2}})
    config = load_config(tmp_path / "low.yaml", ["base=over", "seed=4"])
    assert (config.top.rounds, config.top.seed, config.local.lr) == (2, 4, 0.5)
    cyclic = load_config({"rounds": 7}, ["base=[over,preset/sfl_cyclic]"])
    assert (cyclic.top.rounds, cyclic.top.num_clients, cyclic.participation.groups) == (2, 12, 3)
    with pytest.raises(BadConfig, match=r"no config presets/sfl_cyclic.* did you mean preset/sfl_cyclic"):
        load_config({}, ["base=presets/sfl_cyclic"])
    with pytest.raises(BadConfig, match="base=3, but must be the name of a config"):
        load_config({}, ["base=3"])


def test_later_names_and_lists_replace_and_interpolations_resolve():
    base = {"algorithm": {"name": "fedavg", "aggregate": "weighted", "gamma": 0.5}}
    assert load_config(base, ["algorithm.gamma=2"]).algorithm.aggregate == "weighted"
    assert load_config(base, ["algorithm.name=focus"]).algorithm.gamma is None
    assert load_config(base, ["algorithm=sfl"]).resolved["algorithm"] == {"name": "sfl", "gamma": 1.0}
    assert load_config({"model": "lenet5"}).model.name == "lenet5"
    config = load_config(
        {"seed": 3, "rounds": "${seed}", "logging": {"loggers": ["csv"]}}, ["logging.loggers=[tensorboard]"]
    )
    assert config.top.rounds == 3
    assert config.logging.loggers == ["tensorboard"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algoritm.name=focus"], "unknown key algoritm; did you mean algorithm?"),
        (["algorithm.gama=1"], "unknown key algorithm.gama; did you mean algorithm.gamma?"),
        (["algorithm.name=focuss"], "did you mean focus?"),
        (["algorithm={name:focus}"], "key algorithm.name:focus; a blank is missing after the colon: {name: focus}"),
        (["algorithm.aggregate=meen"], "algorithm.aggregate=meen, but must be one of mean"),
        (["local.lr=fast"], "local.lr=fast, but must be a number"),
        (["rounds=-1"], "rounds=-1, but must be >= 0"),
        (["rounds=ten"], "rounds=ten, but must be a whole number"),
        (["dtype=float16"], "dtype=float16, but must be one of float32, float64"),
        (["runtime.precision=16-mixed"], "gradient scaler"),
        (["runtime.precision=64-true"], "must be null or 32-true or 32-tf32 or bf16-mixed with dtype=float32"),
        (["runtime.precision=32-tf32", "dtype=float64"], "must be null or 64-true with dtype=float64"),
        (["runtime.gpus_per_worker=1.5"], "runtime.gpus_per_worker=1.5"),
        (["eval.globl=true"], "did you mean eval.global?"),
        (["link.name=bernoulli", "link.q=1.5"], "link.q"),
        (["participation.name=uniform"], "participation.size"),
        (["rounds"], "must have the form key=value"),
        (["local=3"], "local=3, but must be a group of keys"),
        (["logging.loggers=[mlflow]"], "logging.loggers=mlflow"),
        (["model.class_path=a.B", "model.name=mlp"], "either a short name or a class_path"),
        (["algorithm=fedavgm", "algorithm.beta=1.0"], "algorithm.beta=1.0, but must be in [0, 1), the server momentum"),
        (["algorithm=fedavgm", "algorithm.beta=x"], "algorithm.beta=x, but must be a number in [0, 1), the server"),
        (["algorithm.name=scaffnew", "algorithm.p=0"], "algorithm.p=0, but must be in (0, 1], or null"),
        (["algorithm.name=fedprox", "algorithm.mu=.nan"], "algorithm.mu=nan, but must be"),
        (["local.lr=.inf"], "local.lr=inf, but must be"),
        (["rounds=true"], "rounds=True, but must be a whole number"),
        (["num_clients=0"], "num_clients=0, but must be >= 1, the number of clients N, or null"),
        (["local.lr_schedule.decay=0"], "local.lr_schedule.decay=0, but must be in (0, 1]"),
        (
            ["runtime.client_timeout=0"],
            "client_timeout=0, but must be > 0, the time limit of a worker in seconds, or n",
        ),
        (["logging.dir=s33://b/runs"], "logging.dir=s33://b/runs, but must be a folder, or a URL such as s3://"),
        (["logging.dir=s3://b/../runs"], "logging.dir=s3://b/../runs, but must be a folder, or a URL such as s3://"),
        (["logging.dir=dir::file:///tmp/runs"], "logging.dir=dir::file:///tmp/runs, but must be a folder, or a URL"),
        (["logging.dir=sftp://me:secret@h/runs"], "logging.dir=sftp://..., but must be a URL without a password"),
    ],
)
def test_mistakes_are_named_with_key_value_and_remedy(overrides, message):
    with pytest.raises(BadConfig, match=re.escape(message)):
        load_config("digits", overrides)


def test_all_mistakes_are_reported_together():
    with pytest.raises(BadConfig) as caught:
        load_config("digits", ["rounds=-1", "local.lr=x", "algorithm.gama=1", "foo=2"])
    assert len(caught.value.problems) == 4


def test_a_missing_config_names_the_nearest_and_a_circle_is_found(tmp_path):
    with pytest.raises(BadConfig, match="did you mean digits"):
        load_config("digitz")
    write(tmp_path, "a.yaml", {"base": "b.yaml"})
    write(tmp_path, "b.yaml", {"base": "a.yaml"})
    with pytest.raises(BadConfig, match="include each other"):
        load_config(tmp_path / "a.yaml")
    (tmp_path / "bad.yaml").write_text("rounds: [1,\n")
    with pytest.raises(BadConfig, match="not readable yaml"):
        load_config(tmp_path / "bad.yaml")


@pytest.mark.parametrize("folder", sorted({path.parent for path in SHIPPED}), ids=lambda path: path.name)
def test_every_shipped_config_is_valid_and_begins_with_its_command(folder, tmp_path):
    needs = {"trace": {"path": _written(tmp_path, *TRACE)}, "file": {"path": _written(tmp_path, *PARTITION)}}
    files = {"file": _written(tmp_path, *EDGES), "recorded": _written(tmp_path, *GRAPH)}
    for path in (path for path in SHIPPED if path.parent == folder):
        assert path.read_text().startswith("# "), path
        content = compose(path)
        for group in ("participation", "partition"):
            content.get(group, {}).update(needs.get(content.get(group, {}).get("name", ""), {}))
        if (name := content.get("topology", {}).get("name")) in files:
            content["topology"]["path"] = files[name]
        load_config(content)


@pytest.mark.parametrize("group", REGISTRIES)
def test_every_component_has_its_file(group):
    (root,) = {p.parents[1] for p in SHIPPED if p.parent.name == group}
    assert {p.stem for p in (root / group).glob("*.yaml")} == set(REGISTRIES[group].names())


def _written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_names_are_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("digits").name == "digits.yaml"
    assert find_config("algorithm/focus").name == "focus.yaml"


@pytest.mark.parametrize(
    ("base", "overrides", "steps", "epochs"),
    [
        ({"steps": 7}, ["local.epochs=2"], None, 2),
        ({"epochs": 3}, ["local.steps=4"], 4, None),
        ({"steps": 7}, ["local.epochs=2", "local.lr=0.5"], None, 2),
        ({"steps": 7}, ["local.steps=null", "local.epochs=2"], None, 2),
        ({"steps": 7}, ["local.epochs=null"], 7, None),
        ({"steps": 7}, ["local.lr=0.5"], 7, None),
        ({"steps": 7, "batch_size": 9}, ["local={epochs: 2}"], None, 2),
    ],
)
def test_epochs_of_a_later_layer_replace_steps_and_vice_versa(tmp_path, base, overrides, steps, epochs):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({"local": base}))
    local = load_config(tmp_path / "base.yaml", overrides).local
    assert (local.steps, local.epochs) == (steps, epochs)
    assert local.batch_size == base.get("batch_size", 32)
    (tmp_path / "next.yaml").write_text(yaml.safe_dump({"base": "base", "local": {"epochs": 5}}))
    assert load_config(tmp_path / "next.yaml").local.epochs == 5


def test_steps_and_epochs_in_one_layer_are_refused():
    with pytest.raises(BadConfig, match=r"local.steps=4 beside epochs=2, but must be left out"):
        load_config({}, ["local.steps=4", "local.epochs=2"])


@pytest.mark.parametrize("group", NAMED_GROUPS)
def test_no_shipped_component_changes_its_options_when_it_is_made(group):
    for name in REGISTRIES[group].names():
        try:
            component = build(REGISTRIES[group], {"name": name}, group)
        except BadConfig:  # needs an option, such as a file
            continue
        assert changed_option(component) is None, name


ODD = ["a\ud800", "a\x1b[31m", "a\u202eb", "a\x7f", "a\u200bb", "a\tb", "a\x85b", "\u2028", "a\x00", "x" * 201]
ODD += ["../x", "/tmp/x", "a/b", "..", ".", ".hidden", "", "a\nb"]


@pytest.mark.parametrize("name", ODD, ids=ascii)
@pytest.mark.parametrize("key", ["name", "logging.id"])
def test_names_that_a_terminal_would_not_show_are_refused(name, key, capsys):
    with pytest.raises(BadConfig, match="the name of one folder: printable") as error:
        load_config({"name": name} if key == "name" else {"logging": {"id": name}})
    assert str(error.value).isascii()


@pytest.mark.parametrize("name", ["Größe 2", "实验", "a-b_c.d", "x" * 200])
def test_names_in_any_language_are_names(name):
    assert load_config({"name": name}).top.name == name


@pytest.mark.parametrize("query", ["secret=abc", "token=abc", "X-Amz-Signature=1", "a"])
def test_a_url_with_a_query_is_refused_and_not_shown(query):
    with pytest.raises(BadConfig, match=r"must be a URL without a password and without \?") as error:
        load_config({"logging": {"dir": f"s3://bucket/runs?{query}"}})
    assert query not in str(error.value).replace("a URL without a password", "") or query == "a"


NUMBERS = {"7": 7, "-7": -7, "+7": 7, "0": 0, "1_000": 1000, "0x1f": 31, "0b11": 3, "1e3": 1000.0, "1.5": 1.5}
TEXTS = ["1:2:3", "1:30", "-1:30", "1:30.5", "08:15", "1_0:00", "017", "-007", "08"]


def test_numbers_with_colons_or_leading_zeros_are_texts_which_a_seed_refuses(capsys):
    assert {text: parse(text) for text in NUMBERS} == NUMBERS
    assert [parse(text) for text in TEXTS] == TEXTS
    config = load_config("digits", ["rounds=010", "logging.id=007"])
    assert (config.top.rounds, config.logging.id) == (10, "007")
    assert main(["run", "digits", "seed=1:2:3"]) == 2
    assert "seed=1:2:3, but must be a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["1e3", "1.50"])
def test_a_name_that_yaml_reads_as_a_fraction_is_refused_without_quotes(number):
    with pytest.raises(BadConfig, match="must be a string or null, in quotes if it looks like a number"):
        load_config("digits", [f"logging.id={number}"])
    assert load_config("digits", [f"logging.id='{number}'"]).logging.id == number


@pytest.mark.parametrize("text", [*NUMBERS, *TEXTS, "12e4567", "+1e3", "1.e3", "1_0e3", "2001-01-01", "yes", ".nan"])
def test_saved_texts_are_read_back_as_texts(text):
    assert parse(dump({"a": text})) == {"a": text}
    assert "'" not in dump({"a": parse(text)}) or isinstance(parse(text), str)


@pytest.mark.parametrize("weights", [[1e308] * 4, [0.0] * 4, [1.7e308, 1e308]])
def test_weights_without_a_finite_positive_sum_are_refused(weights):
    with pytest.raises(BadConfig, match="above 0 for at least one client, with a finite sum"):
        Weighted(size=2, weights=weights)
    assert Weighted(size=2, weights=[1e308, 0.0]).weights == [1e308, 0.0]
