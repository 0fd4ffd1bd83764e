"""Mistakes in data, models and resources end before anything starts, in lines that name key, value and remedy.

Mistakes of a command line: tests/test_cli_exit_codes.py.
"""

import pytest
import yaml

from raylfl.cli import main
from tests.runtime.tiny import ONE_BY_ONE as TINY

RAY = {**TINY, "runtime": {"backend": "ray"}}


@pytest.fixture
def config(tmp_path):
    """A path of the tiny run, for Ray: a mistake found late would start it."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**RAY, "logging": {"dir": str(tmp_path / "runs"), "report": False}}))
    return path


MISTAKES = {
    "a place that other processes cannot reach": (
        ["logging.dir=memory://runs"],
        ["logging.dir=memory://runs", "local"],
    ),
    "no labels": (
        ["data.class_path=tests.runtime.tiny.Unlabelled", "partition={name: dirichlet, alpha: 1.0}"],
        ["partition.name", "no labels"],
    ),
    "no client owns a sample": (
        ["num_clients=2", "participation={name: full}", "partition={name: file, path: FILES/empty.json}"],
        ["no client owns"],
    ),
    "missing file": (["partition={name: file, path: nowhere.json}"], ["partition.path=nowhere.json", "No such file"]),
    "no LightningModule": (["model.class_path=tests.runtime.tiny.Points"], ["must be a LightningModule"]),
    "no training step": (
        ["model.class_path=lightning.pytorch.LightningModule"],
        ["LightningModule has no training_step"],
    ),
    "broken constructor": (["model.init_args.width=-3"], ["Net(width=-3) raised"]),
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
        [f"data={{class_path: tests.runtime.tiny.Items, init_args: {{broken: {[*range(60)]}}}}}"],
        ["train batch cannot be made", "OSError"],
    ),
    "no such layer": (["algorithm={name: splitfed, cut: body.9}"], ["algorithm.cut=body.9", "body.1"]),
    "no size to sample by": (
        ["algorithm=fedacs", "participation={name: full}"],
        ["participation.name=full", "uniform"],
    ),
    "too many workers": (["runtime.workers=1000"], ["runtime.workers=1000 needs 1000 x 1 CPUs"]),
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
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_costs_two_lines_and_exit_code_2(config, tmp_path, capsys, case):
    import ray

    overrides, words = MISTAKES[case]
    (tmp_path / "empty.json").write_text('{"0": [], "1": []}')
    given = [o.replace("FILES", str(tmp_path)) for o in overrides]
    assert main(["run", str(config), *given]) == 2
    err = capsys.readouterr().err
    assert 1 <= len(err.strip().splitlines()) <= 2, err
    for word in words:
        assert word in err
    assert "Traceback" not in err
    assert not ray.is_initialized()
    assert not (tmp_path / "runs").exists()


def test_a_gpu_that_torch_does_not_find_is_refused_before_the_run_is_announced(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert main(["run", str(config), "runtime={backend: local, gpus_per_worker: 1}"]) == 2
    out, err = capsys.readouterr()
    assert "runtime.gpus_per_worker=1" in err
    assert "6 clients" not in out
    assert not (tmp_path / "runs").exists()
