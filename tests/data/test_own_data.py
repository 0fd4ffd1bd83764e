"""Users' data sets of every kind, against torch's DataLoader, which knows nothing of the package."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import raylfl
from raylfl.config.load import load_config
from raylfl.core.samples import BatchSource, SampleSet
from raylfl.data import RowSource
from raylfl.errors import BadConfig
from raylfl.experiment.data_source import load_data

CPU = torch.device("cpu")
X = torch.randint(0, 256, (60, 2), generator=torch.Generator().manual_seed(0)).float()
Y = torch.arange(60) % 2
LENGTHS = torch.arange(60) // 30 * 10 + 5
Pair = namedtuple("Pair", "x y")


class Scaled(TensorDataset):
    """A TensorDataset whose samples are not its rows."""

    def __getitem__(self, k):
        x, y = super().__getitem__(k)
        return x / 255, y


class Halves(Subset):
    """A Subset that changes what it selects."""

    def __getitem__(self, k):
        x, y = super().__getitem__(k)
        return x / 2, y

    __getitems__ = None


class Wrapped(Dataset):
    """A wrapper with the attributes of torch's own classes and of this package's; none says what a sample is."""

    def __init__(self, dataset, indices=None):
        self.dataset, self.indices = dataset, list(range(len(dataset))) if indices is None else indices
        self.tensors = (torch.zeros(60, 2), torch.zeros(60, dtype=torch.int64))
        self.targets = torch.full((60,), 7)
        self.blank = self.rows = 12

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, k):
        x, y = self.dataset[self.indices[k]]
        return x + 1, y


class Rows(Dataset):
    """A data set with methods that look like those of a RowSource."""

    def __len__(self):
        return 60

    def __getitem__(self, k):
        return X[k], int(Y[k])

    def rows(self, indices):
        raise AssertionError("a method of the user's, for the user's purpose")

    blank = rows


class Together(Rows):
    def __getitem__(self, k):
        raise AssertionError("a DataLoader reads samples of this set by __getitems__")

    def __getitems__(self, at):
        return [(X[k] * 3, int(Y[k])) for k in at]


class Dicts(Rows):
    def __getitem__(self, k):
        return OrderedDict(x=X[k], y=int(Y[k]))


class Named(Rows):
    def __getitem__(self, k):
        return Pair(X[k], int(Y[k]))


class Wide(Rows):
    def __getitem__(self, k):
        return X[k].double() / 3, Y[k].to(torch.int16)


BASE = TensorDataset(X, Y)
KINDS = {
    "tensors": BASE,
    "subset": Subset(BASE, [5, 3, 3, 40, 7, 2, 1, 9, 30, 31, 59]),
    "subset of a subset": Subset(Subset(BASE, range(20, 60)), np.arange(3, 33)),
    "random split": tud.random_split(BASE, [40, 20], torch.Generator().manual_seed(1))[0],
    "tensors with samples of their own": Scaled(X, Y),
    "subset with samples of its own": Halves(BASE, range(10, 50)),
    "subset of such a subset": Subset(Halves(BASE, range(10, 50)), range(5, 35)),
    "subset of tensors with samples of their own": Subset(Scaled(X, Y), range(30)),
    "wrapper": Wrapped(BASE),
    "wrapper of a wrapper": Wrapped(Wrapped(BASE), list(range(50, 10, -1))),
    "subset of a wrapper": Subset(Wrapped(BASE), range(7, 41)),
    "two sets": ConcatDataset([BASE, Scaled(X, Y)]),
    "methods called rows and blank": Rows(),
    "all samples at once": Together(),
    "dicts": Dicts(),
    "named tuples": Named(),
    "float64 and int16": Wide(),
    "bfloat16": TensorDataset(X.bfloat16(), Y),
    "float8": TensorDataset(X.to(torch.float8_e4m3fn), Y),
    "bfloat16 one by one": Wrapped(TensorDataset(X.bfloat16(), Y)),
    "complex": TensorDataset(torch.complex(X, X), Y, X.double(), Y.bool()),
    "transposed and conjugated": TensorDataset(torch.complex(X, X).T.contiguous().T.conj(), Y),
    "a set of sets": tud.StackDataset(x=Wrapped(BASE), y=BASE),
}


def same(ours, theirs, dtype):
    if isinstance(theirs, torch.Tensor):
        theirs = theirs.to(dtype) if theirs.is_floating_point() else theirs
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, dict):
        assert type(ours) is type(theirs)
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            same(ours[key], value, dtype)
    else:
        assert len(ours) == len(theirs)
        assert getattr(ours, "_fields", None) == getattr(theirs, "_fields", None)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_the_one_of_torchs_loader(kind, dtype):
    dataset = KINDS[kind]
    at = np.random.default_rng(0).integers(0, len(dataset), 9)
    (expected,) = DataLoader(dataset, batch_sampler=[at.tolist()])
    same(BatchSource(SampleSet.of(dataset), CPU, dtype).batch(at).content, expected, dtype)


def test_only_torchs_own_classes_are_read_as_arrays():
    in_arrays = {kind for kind, dataset in KINDS.items() if SampleSet.of(dataset).arrays is not None}
    assert in_arrays == {
        *("tensors", "subset", "subset of a subset", "random split", "bfloat16", "float8", "complex"),
        "transposed and conjugated",
    }


def test_arrays_are_compared_with_samples_before_they_replace_them(monkeypatch):
    monkeypatch.setattr(
        TensorDataset, "__getitem__", lambda self, k: tuple(t[k] * (1 + (k == 52)) for t in self.tensors)
    )
    samples = SampleSet.of(TensorDataset(X + 1, Y))  # sample 52 is the seventh of the eight that are compared
    assert samples.arrays is None
    assert BatchSource(samples, CPU, torch.float32).gather(np.array([52]))[0].tolist() == [(2 * (X[52] + 1)).tolist()]


@dataclass
class Graph:
    """A batch of a class of its own, without a method `to`."""

    x: torch.Tensor
    y: torch.Tensor
    note: str = ""


def test_a_batch_of_a_dataclass_is_in_the_dtype_of_the_run():
    def collate(samples):
        return Graph(torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples]), "as it is")

    batch = BatchSource(SampleSet.of(Rows(), collate=collate), CPU, torch.float64).gather(np.array([3, 4]))
    assert (type(batch), batch.note, batch.x.dtype, batch.y.tolist()) == (Graph, "as it is", torch.float64, [1, 0])


# -- sets that declare that they read many samples at once -------------------------------------------------------------


class Bulk(RowSource):
    def __init__(self, wrong=None):
        self.wrong = wrong

    def __len__(self):
        return 60

    def rows(self, indices):
        return X.numpy()[indices], Y.numpy()[indices]

    def __getitem__(self, k):
        return X[k] + (k == self.wrong), int(Y[k])


def test_a_row_source_is_read_by_its_rows_if_they_are_its_samples_and_by_a_collate_function():
    at = np.arange(20)
    assert torch.equal(BatchSource(SampleSet.of(Bulk()), CPU, torch.float32).gather(at)[0], X[:20])
    for wrong in (0, 17):  # of the first batch, eight samples are compared
        with pytest.raises(BadConfig, match=rf"data set Bulk: rows\(\[{wrong}\]\) and Bulk\[{wrong}\] differ"):
            BatchSource(SampleSet.of(Bulk(wrong)), CPU, torch.float32).gather(at)
    samples = SampleSet.of(
        Bulk(), collate=lambda samples: {"n": len(samples), "x": torch.stack([x for x, _ in samples])}
    )
    assert not samples.by_index
    assert BatchSource(samples, CPU, torch.float32).gather(np.array([2, 3]))["n"] == 2


# -- runs --------------------------------------------------------------------------------------------------------------


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(2, 2)

    def training_step(self, b, i):
        self.log("x", b[0].float().mean())
        return nn.functional.cross_entropy(self.w(b[0]), b[-1])

    def test_step(self, b, i):
        self.log("x", b[0].mean())
        self.log("loss", nn.functional.cross_entropy(self.w(b[0]), b[-1]))

    def validation_step(self, b, i):
        self.log("x", b[0].mean())
        self.log("n", float(len(b[0])), reduce_fx="sum")


def config(tmp_path, **more):
    base = {
        "name": "own",
        "rounds": 2,
        "num_clients": 3,
        "partition": {"name": "iid"},
        "local": {"steps": 3, "batch_size": 8, "lr": 0.1},
        "runtime": {"backend": "local"},
        "logging": {"dir": str(tmp_path), "report": False},
    }
    return {**base, **more}


class Own:
    """A data class with these attributes."""

    def __init__(self, **given):
        vars(self).update(given)


@pytest.mark.parametrize("kind", ["tensors", "tensors with samples of their own", "wrapper", "two sets", "bfloat16"])
def test_a_run_measures_what_a_loader_gives(tmp_path, kind):
    dataset = KINDS[kind]
    row = raylfl.run(config(tmp_path), model=Net, data=Own(train_dataset=dataset, test_dataset=dataset)).metrics[-1]
    (everything,) = DataLoader(dataset, batch_size=len(dataset))
    assert row["test/x"] == pytest.approx(float(everything[0].float().mean()), rel=1e-5)


def augment(x):
    return x + 100 * torch.rand(len(x), 1)


ONES = TensorDataset(torch.ones(60, 2), Y)


def test_evaluations_never_have_the_training_transform(tmp_path):
    given = {"train_dataset": ONES, "test_dataset": ONES, "val_dataset": ONES, "train_transform": augment}
    every = {"eval": {"clients": True, "every": 1}}
    result = raylfl.run(config(tmp_path, **every), model=Net, data=Own(**given))
    row, log = result.metrics[-1], (result.run_dir / "log.txt").read_text()
    assert row["test/x"] == row["val/x"] == 1.0
    assert row["train/x"] > 20
    assert "train_transform is for training only, and there is no test_transform" in log
    for said in ({"test_transform": None}, {"test_transform": lambda x: x / 2}):
        result = raylfl.run(config(tmp_path), model=Net, data=Own(**given, **said))
        assert result.metrics[-1]["test/x"] == (1.0 if said["test_transform"] is None else 0.5)
        assert "train_transform is for training only" not in (result.run_dir / "log.txt").read_text()


def test_a_transform_that_no_batch_can_take_is_refused(tmp_path):
    with pytest.raises(BadConfig, match=r"applied to the first entry of a batch, but a batch is of type OrderedDict"):
        raylfl.run(config(tmp_path), model=Net, data=Own(train_dataset=Dicts(), train_transform=augment))


class Loaders:
    """A data class of loaders with samplers."""

    def __init__(self, train=None, val=None, test=None):
        self.samplers = train or {}, val or {}, test or {}

    def train_dataloader(self):
        return DataLoader(BASE, **self.samplers[0])

    def val_dataloader(self):
        return DataLoader(BASE, **self.samplers[1])

    def test_dataloader(self):
        return DataLoader(BASE, **self.samplers[2])


def test_samplers_that_choose_samples_choose_them(tmp_path):
    some, rest = list(range(0, 60, 3)), [k for k in range(60) if k % 3]
    given = Loaders(
        train={"sampler": tud.SubsetRandomSampler(rest)},
        val={"sampler": tud.SubsetRandomSampler(some)},
        test={"batch_sampler": [[0, 1], [5, 5, 7]]},
    )
    result = raylfl.run(config(tmp_path, eval={"every": 1}), model=Net, data=given)
    row = result.metrics[-1]
    assert row["val/x"] == pytest.approx(float(X[some].mean()))
    assert row["test/x"] == pytest.approx(float(X[[0, 1, 5, 5, 7]].mean()))
    source = load_data(load_config(config(tmp_path, data={"class_path": "tests.data.test_own_data.Loaders"})))
    assert len(source.train) == 60  # no sampler
    source = load_data(with_data(tmp_path, given))
    assert sorted(map(tuple, source.train.arrays[0].tolist())) == sorted(map(tuple, X[rest].tolist()))
    assert not source.warnings
    weighted = Loaders(train={"sampler": tud.WeightedRandomSampler(torch.ones(60), 10)})
    source = load_data(with_data(tmp_path, weighted))
    assert len(source.train) == 60
    assert "the sampler of train_dataloader is not used" in source.warnings[0]


def with_data(tmp_path, data, *overrides, **more):
    from raylfl.config.objects import object_layer

    return load_config(config(tmp_path, model="logistic", **more), list(overrides), object_layer({"data": data}))
