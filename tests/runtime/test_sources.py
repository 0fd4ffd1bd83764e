"""The source of a user's modules is kept with a run as digests, and changes are named."""

import hashlib
import importlib
import json
import sys

import pytest
import torch

import raylfl
from raylfl.config.load import load_config
from raylfl.execution.store import plan
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
    forget()


def config(**more):
    model, data = {"class_path": "mine_of_sources.Net"}, {"class_path": "mine_of_sources.Data"}
    return {**TINY, "model": model, "data": data, **more}


def test_a_run_keeps_the_digests_of_the_users_classes_only(mine, runs):
    folder = raylfl.run(config(rounds=1), runs).run_dir
    saved = json.loads((folder / FILE).read_text())
    assert list(saved) == ["mine_of_sources"]
    assert {one["file"] for one in saved.values()} == {str(mine)}
    shipped = {"name": "shipped", "data": "logistic_regression_synthetic", "model": "logistic", "partition": "natural"}
    run_dir = raylfl.run(shipped, [*runs, "rounds=0", "num_clients=null", "runtime.backend=local"]).run_dir
    assert not (run_dir / FILE).exists()  # shipped classes only


HELPERS = {
    "mine_of_sources.py": TEXT.replace("import torch", "import torch\nfrom parts_of_sources import loss", 1),
    "parts_of_sources/__init__.py": "from .losses import loss\n",
    "parts_of_sources/losses.py": 'def loss(x):\n    """Loss."""\n    from . import rates\n    return rates.RATE * x',
    "parts_of_sources/rates.py": "RATE = 1.0\n",
    "parts_of_sources/unused.py": "RATE = 1.0\n",
}
OF_HELPERS = ["parts_of_sources", "parts_of_sources.losses", "parts_of_sources.rates"]
EDITS = [
    ("mine_of_sources.py", "return self.w(x)", "return self.w(x).relu()", "mine_of_sources"),
    ("mine_of_sources.py", "x + 1", "x + 2", "mine_of_sources"),
    ("mine_of_sources.py", "class Unused:", "RATE = 2\n\n\nclass Unused:", "mine_of_sources"),
    ("parts_of_sources/losses.py", "rates.RATE * x", "rates.RATE + x", "parts_of_sources.losses"),
    ("parts_of_sources/rates.py", "1.0", "3.0", "parts_of_sources.rates"),
    ("parts_of_sources/unused.py", "1.0", "3.0", None),
    ("parts_of_sources/losses.py", '"""Loss."""', '"""The loss."""  # of x\n', None),
]


@pytest.fixture
def helpers(mine):
    (mine.parent / "parts_of_sources").mkdir()
    for name, text in HELPERS.items():
        (mine.parent / name).write_text(text)
    yield mine.parent
    forget("parts_of_sources")


def forget(prefix="mine_of_sources"):
    for name in [name for name in sys.modules if name.startswith(prefix)]:
        del sys.modules[name]


@pytest.mark.parametrize(("file", "old", "new", "changed"), EDITS)
def test_a_change_of_the_module_or_of_what_it_imports_is_named(helpers, file, old, new, changed):
    """Even if the import is inside a function, and not yet done."""
    saved = sources_of([importlib.import_module("mine_of_sources").Net])
    assert list(saved) == ["mine_of_sources", *OF_HELPERS]
    text = (helpers / file).read_text()
    assert old in text
    (helpers / file).write_text("# a comment above\n" + text.replace(old, new))
    assert changed_names(saved, today(saved)) == ([changed] if changed else [])
    forget()
    again = sources_of([importlib.import_module("mine_of_sources").Net])
    assert changed_names(saved, again) == ([changed] if changed else [])


def notes(*folders):
    return _source_notes([load_run(folder) for folder in folders])


def test_resume_compare_and_reports_name_what_has_changed_since(helpers, runs, undrawn):
    folder = raylfl.run(config(rounds=2), runs).run_dir
    mine, rates = helpers / "mine_of_sources.py", helpers / "parts_of_sources/rates.py"
    mine.write_text("class Net(:\n")  # a file that cannot be read
    assert list(today(read(folder))) == OF_HELPERS
    mine.write_text("# a comment above\n" + HELPERS["mine_of_sources.py"])
    forget()
    raylfl.resume(folder, ["rounds=3"])
    assert "has changed since" not in (folder / "log.txt").read_text()
    assert notes(folder) == []
    rates.write_text("RATE = 3.0\n")
    forget()
    raylfl.resume(folder, ["rounds=4"])
    changed = OF_HELPERS[-1]
    line = f"warning: the source of {changed} has changed since this run began"
    assert line in (folder / "log.txt").read_text()
    note = f"The source of {changed} has changed since 1 of 1 runs"
    assert notes(folder) == [f"{note} ({folder.name})."]
    assert note in write_page(content_of([folder]), folder / "page").read_text()
    other = raylfl.run(config(rounds=1), [*runs, "seed=1"]).run_dir
    assert notes(folder, other) == [
        f"The source of {changed} differs between these runs.",
        f"The source of {changed} has changed since 1 of 2 runs ({folder.name}).",
    ]


def test_an_existing_run_is_not_used_after_a_change_of_a_helper(helpers, runs):
    chosen = load_config(config(rounds=1), runs)
    plan(chosen).make()
    assert plan(chosen).complete
    (helpers / "parts_of_sources/rates.py").write_text("RATE = 3.0\n")
    assert not plan(chosen).begun


def test_digests_of_classes_from_earlier_runs_are_still_read(mine, tmp_path):
    """They were of the lines of a class, and the name of its entry was that of the class."""
    lines = TEXT[TEXT.index("class Unused") :].rstrip()
    saved = {"file": str(mine), "name": "Unused", "sha256": hashlib.sha256(lines.encode()).hexdigest()}
    earlier = {"mine_of_sources.Unused": saved}
    (tmp_path / FILE).write_text(json.dumps(earlier))
    assert read(tmp_path) == today(read(tmp_path)) == earlier
    assert changed_names(earlier, sources_of([importlib.import_module("mine_of_sources").Unused])) == []
    mine.write_text(TEXT.replace("    pass", "    n = 1"))
    assert changed_names(earlier, today(earlier)) == list(earlier)


@pytest.mark.parametrize("content", ["", "[]", '{"a": {"file": 1}}', "[" * 100_000])
def test_damaged_digests_are_no_digests(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert read(tmp_path) == {}


def test_local_classes_and_lambdas_have_digests(tmp_path):
    class Local:
        pass

    found = sources_of([Local(), lambda x: x, 3, dict])
    assert {__name__, "tests.runtime.tiny"} < set(found)
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
