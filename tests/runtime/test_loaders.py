"""Data modules with loaders only, collate functions, and text of unequal length."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import raylfl
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.experiment.data_source import load_data
from raylfl.runtime import check
from raylfl.runtime.workers.worker import Worker
from tests.runtime.loader_modules import Text
from tests.runtime.tiny import TINY, Points

POINTS = {**TINY, "rounds": 2, "data": {"class_path": "tests.runtime.loader_modules.Loaders"}}
TEXT = {
    **TINY,
    "rounds": 3,
    "model": {"class_path": "tests.runtime.loader_modules.Reader"},
    "data": {"class_path": "tests.runtime.loader_modules.Text"},
    "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 2},
}


def test_loaders_alone_give_training_validation_and_test_data(runs):
    source = load_data(load_config(POINTS, []))
    assert [len(part) for part in (source.train, source.val, source.test)] == [48, 12, 20]
    subset = torch.utils.data.random_split(range(60), [48, 12], generator=torch.Generator().manual_seed(0))[0]
    np.testing.assert_array_equal(source.labels, Points().targets[subset.indices])  # for partitions by label
    np.testing.assert_array_equal(source.train.arrays[0], Points().x[subset.indices])  # shared, not item by item
    row = raylfl.run(POINTS, runs).metrics[-1]
    assert {"test/loss", "val/loss"} <= row.keys()


def test_the_trial_before_a_run_uses_two_samples_of_each_set_and_no_gpu(monkeypatch):
    seen = []
    monkeypatch.setattr(check, "Worker", lambda setup: (seen.append(setup), Worker(setup))[1])
    config = load_config(POINTS, ["runtime.backend=local"])
    experiment = assemble(config)
    setup = replace(experiment.setup, runtime=replace(experiment.setup.runtime, gpus_per_worker=0.5))
    check.check(replace(experiment, setup=setup))
    (few,) = seen
    assert [len(part) for part in (few.train, few.val, few.test)] == [2, 2, 2]
    assert few.runtime.gpus_per_worker == 0.0


def test_without_a_validation_set_there_are_no_such_rows(runs):
    row = raylfl.run(POINTS, [*runs, "data.init_args.val=false"]).metrics[-1]
    assert not any(name.startswith("val/") for name in row)


def test_a_sampler_that_is_not_used_is_named(runs):
    result = raylfl.run(POINTS, [*runs, "data.init_args.weighted=true", "rounds=0"])
    assert "the sampler of train_dataloader is not used" in (result.run_dir / "log.txt").read_text()


def test_several_training_loaders_are_refused(runs):
    with pytest.raises(BadConfig, match="must return one DataLoader, not dict"):
        raylfl.run(POINTS, [*runs, "data.class_path=tests.runtime.loader_modules.TwoLoaders"])


def test_text_of_unequal_length_is_padded_by_the_datas_own_collate_function(runs):
    result = raylfl.run(TEXT, runs)
    data, module = Text(), result.module.eval()
    batch = data.collate_fn([data.test_dataset[k] for k in range(25)])
    with torch.no_grad():
        accuracy = float((module(batch).argmax(1) == batch["labels"]).float().mean())
    assert result.metrics[-1]["test/accuracy"] == pytest.approx(accuracy)


def test_the_collate_function_of_a_loader_is_the_same_as_that_of_the_data(runs):
    ours = raylfl.run(TEXT, runs)
    theirs = raylfl.run(TEXT, [*runs, "data.class_path=tests.runtime.loader_modules.TextLoaders"])
    assert torch.equal(ours.params, theirs.params)


class Labelled(Points):
    """Points with other `targets`."""

    def __init__(self, kind: str):
        super().__init__()
        y = self.targets
        other = {"short": y[:-1], "one_hot": torch.eye(3)[y], "real": y + 0.5, "text": [f"class {k}" for k in y]}
        self.train = TensorDataset(self.x, y)
        self.targets = other[kind]

    def train_dataset(self):
        return self.train

    def test_dataset(self):
        return None


@pytest.mark.parametrize(
    ("kind", "given"),
    [("short", "int64 (59,)"), ("one_hot", "float32 (60, 3)"), ("real", "float32 (60,)"), ("text", "<U7")],
)
def test_targets_that_are_not_a_label_for_each_sample_mean_nothing_unless_they_are_named(kind, given):
    data = {"class_path": "tests.runtime.test_loaders.Labelled", "init_args": {"kind": kind}}
    config = {**POINTS, "data": data, "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 1}}
    np.testing.assert_array_equal(load_data(load_config(config, [])).labels, np.arange(60) % 3)  # column 1
    words = r"partition.labels=targets, but must be one integer label for each of the 60 samples, not "
    with pytest.raises(BadConfig, match=words) as told:
        load_data(load_config(config, ["partition.labels=targets"]))
    assert given in str(told.value)


class NoSamples:
    train_dataset: ClassVar[list] = []


def test_training_data_without_samples_are_refused():
    with pytest.raises(BadConfig, match="NoSamples: train_dataset has no samples"):
        load_data(load_config({**POINTS, "data": {"class_path": "tests.runtime.test_loaders.NoSamples"}}, []))
