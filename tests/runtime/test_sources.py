"""The source of a user's classes is kept with a run as digests, and changes are named."""

import json
import sys

import pytest
import torch

import raylfl
from raylfl.report.page import _source_notes, content_of, write_page
from raylfl.report.runs import load_run
from raylfl.runtime.records.sources import FILE, changed_names, digest_of, read, sources_of, today
from tests.runtime.tiny import ONE_BY_ONE as TINY

TEXT = """
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(4, 3)

    def forward(self, x):
        return self.w(x)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.body = Block()

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.body(batch[0]), batch[1])


def shifted(x):
    return x + 1


class Data:
    def __init__(self):
        x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        self.train_dataset = TensorDataset(x, torch.arange(60) % 3)
        self.train_transform, self.test_transform = shifted, None


class Unused:
    pass
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_of_sources.py").write_text(TEXT)
    yield tmp_path / "mine_of_sources.py"
    sys.modules.pop("mine_of_sources", None)


def config(**more):
    model, data = {"class_path": "mine_of_sources.Net"}, {"class_path": "mine_of_sources.Data"}
    return {**TINY, "model": model, "data": data, **more}


def test_a_run_keeps_the_digests_of_the_users_classes_only(mine, runs):
    folder = raylfl.run(config(rounds=1), runs).run_dir
    saved = json.loads((folder / FILE).read_text())
    assert list(saved) == [f"mine_of_sources.{name}" for name in ("Block", "Data", "Net", "shifted")]
    assert {one["file"] for one in saved.values()} == {str(mine)}
    shipped = {"name": "shipped", "data": "logistic_regression_synthetic", "model": "logistic", "partition": "natural"}
    run_dir = raylfl.run(shipped, [*runs, "rounds=0", "num_clients=null", "runtime.backend=local"]).run_dir
    assert not (run_dir / FILE).exists()  # shipped classes only


EDITS = {
    "Block": ("return self.w(x)", "return self.w(x).relu()"),
    "Net": ("batch[0]), batch[1])", "batch[0]), batch[1]) * 2"),
    "shifted": ("x + 1", "x + 2"),
    "Data": ("torch.arange(60) % 3", "torch.arange(60) % 3 + 0"),
}


def notes(*folders):
    return _source_notes([load_run(folder) for folder in folders])


def test_resume_and_reports_name_what_has_changed_since(mine, runs, undrawn):
    folder = raylfl.run(config(rounds=2), runs).run_dir
    mine.write_text("class Net(:\n")  # a file that cannot be read
    assert today(read(folder)) == {}
    mine.write_text(
        TEXT.replace("class Unused:\n    pass", "class Unused:\n    n = 1   \n")
    )  # no change of a class used
    sys.modules.pop("mine_of_sources")
    raylfl.resume(folder, ["rounds=3"])
    assert "has changed since" not in (folder / "log.txt").read_text()
    assert notes(folder) == []
    for name, edit in EDITS.items():
        mine.write_text("# a comment above\n" + TEXT.replace(*edit))
        full = f"mine_of_sources.{name}"
        assert changed_names(read(folder), today(read(folder))) == [full]
    sys.modules.pop("mine_of_sources")
    raylfl.resume(folder, ["rounds=4"])
    line = f"warning: the source of {full} has changed since this run began"
    assert line in (folder / "log.txt").read_text()
    note = f"The source of {full} has changed since 1 of 1 runs"
    assert notes(folder) == [f"{note} ({folder.name})."]
    assert note in write_page(content_of([folder]), folder / "page").read_text()
    other = raylfl.run(config(rounds=1), [*runs, "seed=1"]).run_dir
    assert notes(folder, other) == [
        f"The source of {full} differs between these runs.",
        f"The source of {full} has changed since 1 of 2 runs ({folder.name}).",
    ]


@pytest.mark.parametrize("content", ["", "[]", '{"a": {"file": 1}}', "[" * 100_000])
def test_damaged_digests_are_no_digests(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert read(tmp_path) == {}


def test_local_classes_and_lambdas_have_digests(tmp_path):
    class Local:
        pass

    found = sources_of([Local(), lambda x: x, 3, dict])
    assert len(found) == 2
    assert digest_of(tmp_path / "none.py", "Local") is None


CELL = """
class Net(LightningModule):
    scale = {scale}

    def training_step(self, batch, batch_idx):
        return [nn.{layer}()(batch) for part in batch if part in {{"a", "b"}}]
"""


def test_classes_of_a_notebook_are_compared_by_their_code(monkeypatch):
    """They have no file; a cell that is run again has another place, and is no change."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)

    def cell(layer="ReLU", scale=1, before=""):
        names = {"__name__": "__main__", "LightningModule": torch.nn.Module, "nn": torch.nn}
        exec(compile(before + CELL.format(layer=layer, scale=scale), f"<cell {before!r}>", "exec"), names)
        return sources_of([names["Net"]])

    first = cell()
    assert list(first) == ["__main__.Net"]
    assert changed_names(first, cell(before="\n\n")) == []
    for other in (cell(layer="Tanh"), cell(scale=2)):
        assert changed_names(first, other) == ["__main__.Net"]
