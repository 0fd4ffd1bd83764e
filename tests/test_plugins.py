"""Plug-ins: entry points of installed packages, and classes in a user's folder, in every command."""

import re
import sys

import pytest
import torch
import yaml

import raylfl
from raylfl.cli import main
from raylfl.cli.commands import REGISTERED
from raylfl.config.json_schema import config_schema
from raylfl.config.load import load_config
from raylfl.config.registries import KINDS
from raylfl.errors import BadConfig
from tests.conftest import HERE
from tests.test_cli import PLAIN

SMALL = ["rounds=3", "num_clients=4", "logging.report=false", "runtime.backend=local", "eval.every=2", *PLAIN]
ENTRIES = {
    "algorithms": "sprung = parts_of_another:Sprung\nfedavg = parts_of_another:Sprung\nbroken = parts_gone:Lost\n",
    "partitions": "skewed = parts_of_another:Skewed\n",
    "models": "net = parts_of_another:Net\n",
    "data": "points = parts_of_another:Points\n",
    "loggers": "lines = parts_of_another:Lines\n",
    "links": "wrong = parts_of_another:Sprung\n",
    "participation": "gone = parts_gone:Lost\n",
}


def install(site, name, version, entries):
    """Writes the metadata that pip leaves of a distribution."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text("".join(f"[raylfl.{kind}]\n{text}" for kind, text in entries.items()))


@pytest.fixture
def installed(fresh):
    """A working directory, and installed packages with a plug-in of every kind."""
    site = fresh / "site"
    install(site, "raylfl-parts", "0.3", ENTRIES)
    (site / "parts_of_another.py").write_text((HERE / "mine.py").read_text())
    sys.path.insert(0, str(site))
    return fresh


def test_the_command_line_has_the_kinds_of_the_registries():
    assert list(REGISTERED) == list(KINDS)


def test_entry_points_of_every_kind_are_named_like_shipped_components(installed):
    names = ["algorithm=sprung", "algorithm.mu=0.1", "partition=skewed", "partition.alpha=0.5", "model=net"]
    result = raylfl.run("digits", [*SMALL, *names, "data=points", "logging.loggers=[lines]"])
    twin = ["algorithm=fedprox", "algorithm.mu=0.1", "partition=dirichlet", "partition.alpha=0.5"]
    paths = ["model.class_path=parts_of_another.Net", "data.class_path=parts_of_another.Points"]
    assert torch.equal(result.params, raylfl.run("digits", [*SMALL, *twin, *paths]).params)
    assert (result.run_dir / "lines.txt").read_text().split("\n") == ["round 0", "round 1", "round 2", "end", ""]
    saved = yaml.safe_load((result.run_dir / "config.yaml").read_text())
    assert saved["algorithm"]["class_path"] == "parts_of_another.Sprung"
    longer = raylfl.resume(result.run_dir, ["rounds=4"])
    assert len(longer.metrics) == 4


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algorithm=sprung algorithm.mu=-1", "algorithm.mu=-1, but must be >= 0, the stiffness"),
        ("algorithm=sprung algorithm.muu=1", "did you mean algorithm.mu?"),
        ("algorithm=sprang", "did you mean sprung?"),
        ("algorithm=broken", "broken, but must be a plug-in that works (raylfl-parts 0.3: cannot import"),
        ("link=wrong", "raylfl-parts 0.3: parts_of_another.Sprung must be a dataclass derived from raylfl.heterogen"),
    ],
)
def test_mistakes_with_a_plug_in_are_refused_like_others(installed, setting, words):
    with pytest.raises(BadConfig, match=re.escape(words)):
        load_config("digits", setting.split())


def test_list_shows_plug_ins_with_their_packages_also_broken_and_hidden_ones(installed, capsys):
    assert main(["list", "algorithms"]) == 0
    lines = {
        line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "plug-in: raylfl-parts 0.3" in line
    }
    assert "A spring to the round's model" in lines["sprung"]
    assert "cannot be used" in lines["broken"]
    assert "cannot import parts_gone" in lines["broken"]
    assert "hidden by raylfl's own fedavg: say class_path=parts_of_another.Sprung" in lines["fedavg"]
    assert main(["list"]) == 0
    assert capsys.readouterr().out.count("plug-in: raylfl-parts 0.3") == 9


def test_a_broken_plug_in_does_not_affect_runs_without_it(installed):
    assert load_config("digits").resolved["algorithm"]["name"] == "fedavg"
    assert "class_path" not in load_config("digits").resolved["algorithm"]
    forms = config_schema()["properties"]["algorithm"]["anyOf"]
    assert "broken" in forms[0]["enum"]


def test_two_packages_with_one_name_are_told_apart_by_class_path(installed):
    install(installed / "site", "raylfl-others", "1.0", {"algorithms": "sprung = parts_of_another:Other\n"})
    sys.path.insert(0, str(installed))  # another path: packages are searched again
    with pytest.raises(BadConfig, match=r"raylfl-\w+ \d.\d and raylfl-\w+ \d.\d offer it: say class_path=parts_of_ano"):
        load_config("digits", ["algorithm=sprung"])
    load_config("digits", ["algorithm.class_path=parts_of_another.Sprung"])


def test_raylfls_own_names_are_found_without_searching_packages(monkeypatch):
    def refuse(**group):
        raise AssertionError("packages were searched")

    monkeypatch.setattr("raylfl.components.registry.entry_points", refuse)
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])
    load_config("digits", ["algorithm=focus", "logging.loggers=[csv]"])


def test_list_shows_the_classes_of_a_module_with_their_options(mine, capsys):
    assert main(["list", "mine"]) == 0
    said = capsys.readouterr().out
    for name, kind in {"Sprung": "algorithms", "Skewed": "partitions", "Net": "models", "Points": "data"}.items():
        (line,) = [line for line in said.splitlines() if line.startswith(f"mine.{name} ")]
        assert line.endswith(f"{kind}: {mine}/mine.py")
    assert "a number >= 0, the stiffness; default 0.5" in said
    assert main(["list", "mine.Lines"]) == 0
    assert "Writes rounds as lines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "words"),
    [("mine.Sprang", "did you mean Sprung?"), ("nothing", "invalid choice: 'nothing'"), ("json", "no component")],
)
def test_list_refuses_classes_that_are_no_components(mine, capsys, what, words):
    assert main(["list", what]) == 2
    assert words in capsys.readouterr().err


def test_list_shows_types_in_words_and_says_why_a_module_cannot_be_imported(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_here.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["list", "broken_here"]) == 2
    assert capsys.readouterr().err.startswith("raylfl: list broken_here: cannot import broken_here: No module named")
    assert main(["list", "raylfl.heterogeneity.topologies.graphs.Ring"]) == 0
    assert "a value per client; default 0.0" in capsys.readouterr().out


def test_a_logger_may_be_a_users_class_or_any_of_lightnings(mine):
    ours = {"class_path": "mine.Lines", "init_args": {"word": "done"}}
    theirs = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"name": "theirs", "version": "0"}}
    config = {"base": "digits", "logging": {"loggers": ["mine.Lines", ours, theirs]}}
    result = raylfl.run(config, SMALL)
    assert (result.run_dir / "lines.txt").read_text().split().count("done") == 3
    assert (result.run_dir / "theirs" / "0" / "metrics.csv").read_text().count("\n") == 4
    saved = yaml.safe_load((result.run_dir / "config.yaml").read_text())
    assert saved["logging"]["loggers"] == ["mine.Lines", ours, theirs]


@pytest.mark.parametrize(
    ("logger", "words"),
    [
        ("mine.Line", "did you mean Lines?"),
        ("mine.Sprung", "a Lightning logger, or a class with log(metrics) and close()"),
        ("{class_path: mine.Lines, init_args: {wort: x}}", "logging.loggers.init_args.wort; did you mean"),
        ("{class_path: mine.Lines, args: {}}", "unknown key logging.loggers.args"),
        ("{name: csv, init_args: {word: x}}", "left out: csv takes none"),
        ("mlflow", "logging.loggers=mlflow"),
    ],
)
def test_a_logger_that_cannot_be_made_is_refused_before_the_run(mine, logger, words):
    with pytest.raises(BadConfig, match=re.escape(words)):
        raylfl.run("digits", [*SMALL, f"logging.loggers=[{logger}]"])
    assert not (mine / "runs").exists()
