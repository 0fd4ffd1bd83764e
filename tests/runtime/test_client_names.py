"""`client_indices` as a mapping: the names of clients are in tables and figures; other forms are refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import raylfl
from raylfl.cli import main
from raylfl.errors import BadConfig
from raylfl.report.pictures import participation_pictures, partition_pictures
from raylfl.report.runs import group_runs, load_run
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.runtime.tiny import Points

USERS = ["zoe", "anna", "max"]
NATURAL = {**TINY, "num_clients": 3, "partition": {"name": "natural"}, "participation": {"name": "full"}}


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


def test_a_mapping_is_the_list_of_its_values_with_names(runs):
    named, listed, series = (raylfl.run(NATURAL, runs, data=data) for data in (Named, Listed, Series))
    assert torch.equal(named.params, listed.params)
    assert json.loads((series.run_dir / "client_names.json").read_text()) == ["anna", "max", "zoe"]
    assert json.loads((named.run_dir / "client_names.json").read_text()) == ["anna", "max", "zoe"]
    assert not (listed.run_dir / "client_names.json").exists()
    table = raylfl.load(named.run_dir).clients
    assert list(table.columns) == ["round", "client", "metric", "value", "name"]
    assert dict(zip(table["client"], table["name"], strict=True)) == {0: "anna", 1: "max", 2: "zoe"}
    assert "name" not in raylfl.load(listed.run_dir).clients
    iid = raylfl.run({**NATURAL, "partition": {"name": "iid"}}, runs, data=Named)
    assert not (iid.run_dir / "client_names.json").exists()  # its clients are not these users


def test_figures_and_the_command_partition_have_the_names(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = load_run(raylfl.run(NATURAL, runs, data=Named).run_dir)
    groups = group_runs([run])
    for pictures, place in ((partition_pictures, "xaxis"), (participation_pictures, "yaxis")):
        (picture,) = pictures(groups)
        labels = [[text.get_text() for text in getattr(ax, place).get_ticklabels()] for ax in picture.figure.axes]
        assert ["anna", "max", "zoe"] in labels
    config = ["num_clients=3", "partition=natural", "data.class_path=tests.runtime.test_client_names.Named"]
    assert main(["partition", "digits", *config, "-o", str(tmp_path / "p")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[:4]] == ["name", "anna", "max", "zoe"]


def test_damaged_names_are_left_out(runs):
    folder = raylfl.run(NATURAL, runs, data=Named).run_dir
    (folder / "client_names.json").write_text('["anna", 3')
    run = load_run(folder)
    assert run.client_names is None
    assert run.faults == ["client_names.json cannot be read"]


@pytest.mark.parametrize(
    "given",
    [
        {"a": "0, 1", "b": [2]},
        {"a": [0.5], "b": [2]},
        {"a": 3},
        ["ab", "cd"],
        [[[0, 1]], [[2, 3]]],
        7,
    ],
)
def test_what_is_no_list_of_index_lists_is_refused(runs, given):
    class Odd(Points):
        def __init__(self):
            super().__init__()
            self.client_indices = given

    with pytest.raises(BadConfig, match=r"client_indices must be a list of index lists, one per client, or a mapping"):
        raylfl.run(NATURAL, runs, data=Odd)


@pytest.mark.parametrize("kind", [tuple, np.array, pd.Series, torch.tensor, list])
def test_an_index_list_may_be_any_sequence_of_whole_numbers(runs, kind):
    class Kinds(Points):
        def __init__(self):
            super().__init__()
            self.client_indices = {c: kind(list(range(c, 60, 3))) for c in range(3)}

    result = raylfl.run(NATURAL, [*runs, "rounds=1"], data=Kinds)
    assert json.loads((result.run_dir / "client_names.json").read_text()) == ["0", "1", "2"]
