"""Labels of users' data sets, and the state that their data carry from batch to batch."""

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from torch.utils.data import Dataset, Subset, TensorDataset

import raylfl
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from tests.data.test_own_data import BASE, LENGTHS, Bulk, Net, Own, Rows, X, Y, config, with_data


class Item(Dataset):
    """A map-style set with samples of these columns, and attributes that may say anything."""

    def __init__(self, *columns, as_dict=False, **attributes):
        self.columns, self.as_dict = columns, as_dict
        vars(self).update(attributes)

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, k):
        sample = tuple(c[k] for c in self.columns)
        return dict(zip("abc", sample, strict=False)) if self.as_dict else sample


CASES = {
    "the one integer column": (Own(train_dataset=TensorDataset(X, Y)), None, Y),
    "wherever it is": (Own(train_dataset=TensorDataset(Y, X)), None, Y),
    "an item's": (Own(train_dataset=Item(X, Y)), None, Y),
    "an item's Python numbers": (Own(train_dataset=Item(X, LENGTHS.tolist())), None, LENGTHS),
    "a dict's": (Own(train_dataset=Item(X, Y, as_dict=True)), None, Y),
    "a row source's": (Own(train_dataset=Bulk()), None, Y),
    "a subset's": (Own(train_dataset=Subset(Item(X, Y), range(10, 50))), None, Y[10:50]),
    "with targets that say nothing": (Own(train_dataset=Item(X, Y, targets=LENGTHS)), None, Y),
    "a data class's that agree": (Own(train_dataset=TensorDataset(X, LENGTHS, Y), targets=Y.tolist()), None, Y),
    "an item's that agree": (Own(train_dataset=Item(X, LENGTHS, Y), targets=Y), None, Y),
    "no column": (Own(train_dataset=TensorDataset(X, X), targets=Y), None, Y),
    "column 1": (Own(train_dataset=TensorDataset(X, LENGTHS, Y)), 1, LENGTHS),
    "column 2": (Own(train_dataset=TensorDataset(X, LENGTHS, Y)), 2, Y),
    "column 2 of items": (Own(train_dataset=Item(X, LENGTHS, Y)), 2, Y),
    "a bool column": (Own(train_dataset=TensorDataset(X, LENGTHS, Y.bool())), 2, Y),
    "a column of one": (Own(train_dataset=TensorDataset(X, Y[:, None])), 1, Y),
    "a key": (Own(train_dataset=Item(X, LENGTHS, Y, as_dict=True)), "c", Y),
    "an attribute of the set": (Own(train_dataset=Item(X, Y, targets=LENGTHS)), "targets", LENGTHS),
    "of a subset's set": (Own(train_dataset=Subset(Item(X, Y, kind=LENGTHS), [4, 40])), "kind", LENGTHS[[4, 40]]),
    "an attribute of the class": (Own(train_dataset=TensorDataset(X, LENGTHS, Y), kind=Y), "kind", Y),
    "a method of the class": (Own(train_dataset=TensorDataset(X, LENGTHS, Y), kind=lambda: Y), "kind", Y),
}


@pytest.mark.parametrize("case", CASES)
def test_labels_are_what_the_config_names_or_the_one_integer_column(tmp_path, case):
    data, choice, expected = CASES[case]
    partition = {"name": "shards", "shards_per_client": 1, "labels": choice}
    experiment = assemble(with_data(tmp_path, data, partition=partition, num_clients=2))
    np.testing.assert_array_equal(experiment.labels, expected.numpy())
    counts = [len(np.unique(experiment.labels[mine])) for mine in experiment.split.clients]
    assert max(counts) <= 2


REFUSALS = {
    "two columns": (Own(train_dataset=TensorDataset(X, LENGTHS, Y)), None, "labels=null, but must be one of 1, 2 "),
    "two columns of items": (Own(train_dataset=Item(X, LENGTHS, Y)), None, "labels=null, but must be one of 1, 2 "),
    "two keys": (Own(train_dataset=Item(X, LENGTHS, Y, as_dict=True)), None, "labels=null, but must be one of b, c "),
    "targets that disagree": (Own(train_dataset=TensorDataset(X, Y), targets=LENGTHS), None, "labels=null, .*gets, 1 "),
    "an item's that disagree": (Own(train_dataset=Item(X, Y), targets=1 - Y), None, "labels=null, .* of targets, 1 "),
    "no integers": (Own(train_dataset=TensorDataset(X, X[:, 0])), None, "name=a partition by label, but must be iid"),
    "a column that is none": (Own(train_dataset=TensorDataset(X, Y)), 2, r"labels=2, but must be a column .*\(0, 1\)"),
    "a column of inputs": (Own(train_dataset=TensorDataset(X, Y)), 0, "labels=0, but must be one integer label for"),
    "an unknown name": (Own(train_dataset=Item(X, Y, as_dict=True)), "label", r"labels=label, .*\(a, b\)"),
    "a name of two things": (Own(train_dataset=Item(X, Y, kind=Y), kind=LENGTHS), "kind", "labels=kind, .* one thing"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_labels_that_may_be_two_things_are_refused_with_both_names(tmp_path, case):
    data, choice, words = REFUSALS[case]
    with pytest.raises(BadConfig, match=rf"partition\.{words}"):
        assemble(with_data(tmp_path, data, partition={"name": "classes", "labels": choice}))


def test_a_partition_without_labels_does_not_ask_for_them(tmp_path):
    class Unread(Item):
        def __getitem__(self, k):
            raise AssertionError("read")

    assert assemble(with_data(tmp_path, Own(train_dataset=Unread(X, LENGTHS, Y)))).labels is None
    assert assemble(with_data(tmp_path, REFUSALS["two columns"][0])).labels is None


# -- state of the data -------------------------------------------------------------------------------------------------


class Counting(Rows):
    """A set whose samples depend on those that were read before, or that only keeps a file open."""

    def __init__(self, kind):
        self.kind, self.calls, self.file, self.draw = kind, 0, None, np.random.default_rng(0)

    def __getitem__(self, k):
        if self.kind == "file":
            self.file = self.file or open(__file__, encoding="utf-8")  # noqa: SIM115 - as users do
        if self.kind == "counter":
            self.calls += 1
        noise = self.draw.standard_normal() if self.kind == "generator" else float(torch.rand(()))
        return X[k] + noise, int(Y[k])


class Adding:
    def __init__(self):
        self.n = 0

    def __call__(self, x):
        self.n += 1
        return x


def hidden():
    seen = []

    def collate(samples):
        seen.append(1)
        x, y = tud.default_collate(samples)
        return x + len(seen), y

    return collate


STATES = {
    "counter": (Own(train_dataset=Counting("counter")), "reading samples changes train_dataset.calls"),
    "wrapped": (Own(train_dataset=Subset(Counting("counter"), range(30))), "changes train_dataset.dataset.calls"),
    "generator": (Own(train_dataset=Counting("generator")), "the same train samples, read twice with the same seed"),
    "transform": (Own(train_dataset=BASE, train_transform=Adding(), test_transform=None), "changes train_transform.n"),
    "evaluation": (Own(train_dataset=BASE, test_dataset=BASE, test_transform=Adding()), "changes test_transform.n"),
    "collate": (Own(train_dataset=BASE, collate_fn=hidden()), "the same train samples, read twice"),
    "file": (Own(train_dataset=Counting("file")), None),
    "torch": (Own(train_dataset=Counting("torch")), None),
}


@pytest.mark.parametrize("case", STATES)
def test_state_that_data_carry_from_batch_to_batch_is_named_at_the_start(tmp_path, case):
    data, words = STATES[case]
    result = raylfl.run(config(tmp_path, rounds=0), model=Net, data=data)
    lines = [line for line in (result.run_dir / "log.txt").read_text().splitlines() if "never reset" in line]
    if words is None:
        assert lines == []
    else:
        assert words in lines[0]
