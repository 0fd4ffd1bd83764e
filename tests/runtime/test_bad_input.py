"""Every mistake ends before anything starts: one or two lines that name key, value and remedy, and exit code 2."""

from __future__ import annotations

import json
import os

import pytest
import yaml

from raylfl.cli import main
from tests.runtime.faults import finished
from tests.runtime.tiny import ONE_BY_ONE as TINY

RAY = {**TINY, "runtime": {"backend": "ray"}}


@pytest.fixture
def config(tmp_path):
    """A path of the tiny run, for Ray: a mistake found late would start it."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**RAY, "logging": {"dir": str(tmp_path / "runs"), "report": False}}))
    return path


@pytest.fixture
def files(tmp_path):
    """Damaged and impossible files, by the names that cases use."""
    (tmp_path / "torn.json").write_text('{"0": [0, 1], "1": [2')
    (tmp_path / "twice.json").write_text(json.dumps({"0": [0, 1], "1": [1, 2]}))
    (tmp_path / "empty_clients.json").write_text(json.dumps({"0": [], "1": []}))
    (tmp_path / "torn.jsonl").write_text('{"round": 0, "cohort": [0\n')
    (tmp_path / "short.jsonl").write_text(
        '{"round": 0, "cohort": [0], "draws": [1], "received": [true], "steps": [1]}\n'
    )
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "train-images-idx3-ubyte").write_bytes(os.urandom(64))
    return tmp_path


MISTAKES = {
    "a place that other processes cannot reach": (
        ["logging.dir=memory://runs"],
        ["logging.dir=memory://runs", "local"],
    ),
    "unknown key": (["local.lrate=1"], ["local.lrate", "local.lr"]),
    "unknown group": (["participaton.size=3"], ["participaton", "participation"]),
    "wrong type": (["rounds=many"], ["rounds=many", "whole number"]),
    "wrong sign": (["local.lr=-0.1"], ["local.lr=-0.1", "> 0"]),
    "unknown name": (["algorithm.name=fedavgg"], ["fedavgg", "did you mean fedavg"]),
    "too many asked": (["participation.size=7"], ["participation.size=7", "1..6"]),
    "too many clients": (["num_clients=61"], ["num_clients=61", "1..60"]),
    "too many classes": (["partition={name: classes, classes: 4}"], ["partition.classes=4", "3"]),
    "no labels": (
        ["data.class_path=tests.runtime.tiny.Unlabelled", "partition={name: dirichlet, alpha: 1.0}"],
        ["partition.name", "no labels"],
    ),
    "missing value": (["partition={name: file}"], ["partition.path=''", "JSON file"]),
    "missing file": (["partition={name: file, path: nowhere.json}"], ["partition.path=nowhere.json", "No such file"]),
    "torn partition": (
        ["num_clients=2", "partition={name: file, path: FILES/torn.json}"],
        ["partition.path", "torn.json"],
    ),
    "sample owned twice": (
        ["num_clients=2", "partition={name: file, path: FILES/twice.json}"],
        ["twice.json", "at most once"],
    ),
    "no client owns a sample": (
        ["num_clients=2", "participation={name: full}", "partition={name: file, path: FILES/empty_clients.json}"],
        ["no client owns"],
    ),
    "torn trace": (["participation={name: trace, path: FILES/torn.jsonl}"], ["participation.path", "line 1"]),
    "short trace": (
        ["participation={name: trace, path: FILES/short.jsonl}"],
        ["short.jsonl", "without round 1"],
    ),
    "missing data": (["data={name: mnist, init_args: {root: nowhere}}", "model=mlp"], ["nowhere"]),
    "damaged data": (["data={name: mnist, init_args: {root: FILES/images}}", "model=mlp"], ["images"]),
    "no such module": (["model.class_path=nowhere.Net"], ["model.class_path=nowhere.Net", "cannot import nowhere"]),
    "no such class": (["model.class_path=tests.runtime.tiny.Nett"], ["did you mean Net"]),
    "no LightningModule": (["model.class_path=tests.runtime.tiny.Points"], ["must be a LightningModule"]),
    "no training step": (
        ["model.class_path=lightning.pytorch.LightningModule"],
        ["LightningModule has no training_step"],
    ),
    "broken import": (["data.class_path=tests.runtime.broken.Points"], ["importing tests.runtime.broken raised"]),
    "broken constructor": (["model.init_args.width=-3"], ["Net(width=-3) raised"]),
    "unknown argument": (["model.init_args.widht=3"], ["model.init_args.widht", "did you mean model.init_args.width"]),
    "no training data": (["data.class_path=tests.runtime.tiny.Empty"], ["has no train_dataset"]),
    "wrong shape": (
        ["model.class_path=tests.runtime.modules.Quadratic"],
        ["cannot be trained on a batch of (2, 4) float32"],
    ),
    "wrong test shape": (
        ["data.class_path=tests.runtime.tiny.OddTest"],
        ["cannot be evaluated on a batch of (2, 5) float32"],
    ),
    "wrong optimum": (
        ["data.class_path=tests.runtime.tiny.WrongOptimum"],
        ["optimum() has 2 entries", "63 parameters"],
    ),
    "unreadable sample": (
        ["data.class_path=tests.runtime.tiny.AllBroken"],
        ["train batch cannot be made", "OSError"],
    ),
    "no such layer": (["algorithm={name: splitfed, cut: body.9}"], ["algorithm.cut=body.9", "body.1"]),
    "no size to sample by": (
        ["algorithm=fedacs", "participation={name: full}"],
        ["participation.name=full", "uniform"],
    ),
    "too many workers": (["runtime.workers=1000"], ["runtime.workers=1000 needs 1000 x 1 CPUs"]),
    "too many CPUs": (["runtime.cpus_per_worker=1000"], ["1 x 1000 CPUs", "lower runtime.workers"]),
    "too many GPUs": (["runtime.workers=64", "runtime.gpus_per_worker=1"], ["64 x 1 GPUs", "lower runtime.workers"]),
    "part of a second GPU": (
        ["runtime.gpus_per_worker=1.5"],
        [
            "runtime.gpus_per_worker=1.5",
            "at most 1, or a whole number (several GPUs are for a model that shards itself",
        ],
    ),
    "more processes than GPUs": (
        ["runtime.gpus_per_worker=2", "runtime.processes_per_worker=3"],
        ["runtime.processes_per_worker=3", "a process has one GPU, and runtime.gpus_per_worker=2"],
    ),
    "a value a client for one": (
        ["algorithm=centralized", "local={steps: {list: [1, 1, 1, 1, 1, 1]}}"],
        ["local.steps.list=6 entries", "must be 1"],
    ),
    "a folder with a slash": (["name=a/b"], ["name='a/b'", "no slashes"]),
    "no place to write": (["logging.dir=CONFIG"], ["cannot make a run directory there"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_costs_two_lines_and_exit_code_2(config, files, tmp_path, capsys, case):
    import ray

    overrides, words = MISTAKES[case]
    given = [o.replace("FILES", str(files)).replace("CONFIG", str(config)) for o in overrides]
    assert main(["run", str(config), *given]) == 2
    err = capsys.readouterr().err
    assert 1 <= len(err.strip().splitlines()) <= 2, err
    for word in words:
        assert word in err
    assert "Traceback" not in err
    assert not ray.is_initialized()
    assert not (tmp_path / "runs").exists()


def test_a_mistake_ends_a_separate_process_with_two_lines(command, config, tmp_path):
    code, out, err = finished(command("run", str(config), "local.lrate=1"))
    assert (code, out) == (2, "")
    assert err.splitlines() == ["raylfl: unknown key local.lrate; did you mean local.lr?"]
    assert not (tmp_path / "runs").exists()


def test_several_mistakes_are_reported_together_in_two_lines(config, capsys):
    assert main(["run", str(config), "local.lrate=1", "rounds=-1", "eval.every=x"]) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in ("local.lrate", "rounds=-1", "eval.every=x"))
    assert len(err.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["resume", "nowhere"], "not a run directory"),
        (["run", "nowhere.yaml"], "no config nowhere.yaml"),
        (["run", "digits", "rounds"], "must have the form key=value"),
    ],
)
def test_bad_usage_is_reported_in_the_same_way(capsys, argv, words):
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) <= 2


def test_debug_shows_where(config, capsys):
    assert main(["run", "--debug", str(config), "model.class_path=nowhere.Net"]) == 2
    assert "Traceback" in capsys.readouterr().err
