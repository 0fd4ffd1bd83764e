"""Data of users: loaders only, collate functions, text of unequal length, names of clients."""

import json
import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import raylfl
from raylfl.cli import main
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.experiment.data_source import load_data
from raylfl.report.pictures import participation_pictures, partition_pictures
from raylfl.report.runs import group_runs, load_run
from raylfl.runtime import check
from raylfl.runtime.workers.worker import Worker
from tests.runtime.loader_modules import Text
from tests.runtime.tiny import ONE_BY_ONE, Points

POINTS = {**ONE_BY_ONE, "rounds": 1, "data": {"class_path": "tests.runtime.loader_modules.Loaders"}}
TEXT = {
    **ONE_BY_ONE,
    "rounds": 3,
    "model": {"class_path": "tests.runtime.loader_modules.Reader"},
    "data": {"class_path": "tests.runtime.loader_modules.Text"},
    "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 2},
}


def test_loaders_alone_give_training_validation_and_test_data(runs):
    source = load_data(load_config(POINTS, []))
    assert [len(part) for part in (source.train, source.val, source.test)] == [48, 12, 20]
    subset = torch.utils.data.random_split(range(60), [48, 12], generator=torch.Generator().manual_seed(0))[0]
    np.testing.assert_array_equal(source.samples.labels, Points().targets[subset.indices])  # for partitions by label
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


def test_without_a_validation_set_there_are_no_such_rows_and_an_unused_sampler_is_named(runs):
    result = raylfl.run(POINTS, [*runs, "data.init_args={val: false, weighted: true}"])
    assert not any(name.startswith("val/") for name in result.metrics[-1])
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


class NoSamples:
    train_dataset: ClassVar[list] = []


def test_training_data_without_samples_are_refused():
    with pytest.raises(BadConfig, match="NoSamples: train_dataset has no samples"):
        load_data(load_config({**POINTS, "data": {"class_path": "tests.runtime.test_loaders.NoSamples"}}, []))


# -- client_indices as a mapping: names of clients --------------------------------------------------------------------


USERS = ["zoe", "anna", "max"]
NATURAL = {
    **ONE_BY_ONE,
    "rounds": 1,
    "num_clients": 3,
    "partition": {"name": "natural"},
    "participation": {"name": "full"},
}


class Named(Points):
    """Sixty points of three users, as pandas groups them: sorted by name."""

    def __init__(self):
        super().__init__()
        self.client_indices = pd.DataFrame({"user": [USERS[k % 3] for k in range(60)]}).groupby("user").indices


class Listed(Named):
    """The same clients in the same order, without names."""

    def __init__(self):
        super().__init__()
        self.client_indices = list(self.client_indices.values())


class Series(Named):
    """The same clients as a Series, the result of `groupby(...).apply`."""

    def __init__(self):
        super().__init__()
        self.client_indices = pd.Series({name: list(rows) for name, rows in self.client_indices.items()})


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    return raylfl.run(NATURAL, [f"logging.dir={tmp_path_factory.mktemp('named')}"], data=Named)


def test_a_mapping_is_the_list_of_its_values_with_names(runs, named):
    listed = raylfl.run(NATURAL, runs, data=Listed)
    series = raylfl.run(NATURAL, [*runs, "rounds=0"], data=Series)
    assert torch.equal(named.params, listed.params)
    assert json.loads((series.run_dir / "client_names.json").read_text()) == ["anna", "max", "zoe"]
    assert json.loads((named.run_dir / "client_names.json").read_text()) == ["anna", "max", "zoe"]
    assert not (listed.run_dir / "client_names.json").exists()
    table = raylfl.load(named.run_dir).clients
    assert list(table.columns) == ["round", "client", "metric", "value", "name"]
    assert dict(zip(table["client"], table["name"], strict=True)) == {0: "anna", 1: "max", 2: "zoe"}
    assert "name" not in raylfl.load(listed.run_dir).clients
    iid = raylfl.run({**NATURAL, "partition": {"name": "iid"}}, [*runs, "rounds=0"], data=Named)
    assert not (iid.run_dir / "client_names.json").exists()  # its clients are not these users


def test_figures_and_the_command_partition_have_the_names(named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    groups = group_runs([load_run(named.run_dir)])
    for pictures, place in ((partition_pictures, "xaxis"), (participation_pictures, "yaxis")):
        (picture,) = pictures(groups)
        labels = [[text.get_text() for text in getattr(ax, place).get_ticklabels()] for ax in picture.figure.axes]
        assert ["anna", "max", "zoe"] in labels
    config = ["num_clients=3", "partition=natural", "data.class_path=tests.runtime.test_loaders.Named"]
    assert main(["partition", "digits", *config, "-o", str(tmp_path / "p")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[:4]] == ["name", "anna", "max", "zoe"]


def test_damaged_names_are_left_out(named, tmp_path):
    folder = shutil.copytree(named.run_dir, tmp_path / "run")
    (folder / "client_names.json").write_text('["anna", 3')
    run = load_run(folder)
    assert run.client_names is None
    assert run.faults == ["client_names.json cannot be read"]


@pytest.mark.parametrize("given", [{"a": "0, 1"}, {"a": [0.5], "b": [2]}, ["ab", "cd"], [[[0, 1]], [[2, 3]]], 7])
def test_what_is_no_list_of_index_lists_is_refused(runs, given):
    class Odd(Points):
        def __init__(self):
            super().__init__()
            self.client_indices = given

    with pytest.raises(BadConfig, match=r"client_indices must be a list of index lists, one per client, or a mapping"):
        raylfl.run(NATURAL, runs, data=Odd)


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_an_index_list_may_be_any_sequence_of_whole_numbers(runs, kind):
    class Kinds(Points):
        def __init__(self):
            super().__init__()
            self.client_indices = {c: kind(list(range(c, 60, 3))) for c in range(3)}

    result = raylfl.run(NATURAL, [*runs, "rounds=0"], data=Kinds)
    assert json.loads((result.run_dir / "client_names.json").read_text()) == ["0", "1", "2"]
