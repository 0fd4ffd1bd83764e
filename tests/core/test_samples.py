"""Batches of a data set, and the owners of its samples."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from raylfl.core.samples import BatchSource, ClientShards, SampleSet
from raylfl.data import RowSource
from raylfl.errors import BadConfig

CPU = torch.device("cpu")


class Items(Dataset):
    """A map-style set without tensors."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int):
        return torch.full((2,), float(i)), i % 3


def test_arrays_and_items_give_the_same_batch():
    items = SampleSet.of(Items())
    x = torch.stack([Items()[i][0] for i in range(6)])
    arrays = SampleSet.of(TensorDataset(x, torch.tensor([i % 3 for i in range(6)])))
    at = np.array([4, 1, 1])
    a = BatchSource(arrays, CPU, torch.float64).batch(at)
    b = BatchSource(items, CPU, torch.float64).batch(at)
    assert a.size == b.size == 3
    assert torch.equal(a.content[0], b.content[0])
    assert torch.equal(a.content[1], b.content[1])
    assert a.content[0].dtype == torch.float64


class ByIndex(RowSource):
    """A set that reads a batch at once."""

    def __len__(self) -> int:
        return 6

    def rows(self, indices):
        return np.outer(indices, [1.0, 1.0]), indices % 3


def test_a_set_that_reads_batches_by_index_gives_the_batch_of_its_items():
    at, one_by_one = np.array([4, 1, 1]), SampleSet.of(Items())
    at_once = SampleSet.of(ByIndex())
    assert (at_once.by_index, one_by_one.by_index) == (True, False)
    ours, theirs = (BatchSource(samples, CPU, torch.float64).batch(at).content for samples in (at_once, one_by_one))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Own:
    """A user's batch class with a method `to` for the device."""

    device = None

    def to(self, device):
        self.device = device
        return self


def test_collated_batches_of_any_form_are_in_the_dtype_of_the_run():
    """Floating-point tensors change; labels, and what is no tensor, stay; the form stays."""
    moved = BatchSource(SampleSet(None, Items()), CPU, torch.float64)._move
    x, y, own = torch.ones(2), torch.arange(2), Own()
    for made in (
        moved((x, y)),
        moved([x, y]),
        moved(Pair(x, y)),
        list(moved({"x": x, "y": y}).values()),
        moved({"a": [(x, y)]})["a"][0],
    ):
        assert [part.dtype for part in made] == [torch.float64, torch.int64]
    assert type(moved([x])) is list
    assert type(moved(Pair(x, y))) is Pair
    assert moved("text") == "text"
    assert moved(own) is own
    assert own.device == CPU


def test_a_part_holds_its_own_samples_under_their_numbers_in_the_whole_set():
    whole = SampleSet((np.arange(12.0).reshape(6, 2), np.arange(6) * 10))
    part = whole.part(np.array([1, 4]))
    assert [a.tolist() for a in part.arrays] == [[[2.0, 3.0], [8.0, 9.0]], [10, 40]]
    assert not np.shares_memory(part.arrays[0], whole.arrays[0])
    assert part.row_numbers(np.array([4, 1, 4])).tolist() == [1, 0, 1]
    assert whole.row_numbers(np.array([5, 2])).tolist() == [5, 2]
    for elsewhere in (0, 2, 5):
        with pytest.raises(LookupError, match="does not hold it"):
            part.row_numbers(np.array([4, elsewhere]))
    items = SampleSet(None, Items()).part(np.array([3]))
    assert items.arrays is None
    assert (items.owned.tolist(), len(items)) == ([3], 6)


def test_the_transform_acts_on_inputs_when_they_are_used():
    samples = SampleSet.of(TensorDataset(torch.ones(3, 2), torch.arange(3)), lambda x: x * 5)
    batch = BatchSource(samples, CPU, torch.float32).batch(np.array([0]))
    assert batch.content[0].tolist() == [[5.0, 5.0]]
    assert samples.arrays[0].max() == 1.0


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8))
def test_shards_give_back_the_lists_they_were_made_of(lists):
    shards = ClientShards.of([np.array(x, dtype=np.int64) for x in lists])
    assert [shards[i].tolist() for i in range(len(lists))] == lists
    assert shards.sizes.tolist() == [len(x) for x in lists]


@pytest.mark.parametrize("second", [torch.zeros(4), object()])
def test_samples_that_do_not_form_a_batch_name_the_remedy(second):
    source = BatchSource(SampleSet.of([torch.zeros(3), second]), CPU, torch.float32, False)
    with pytest.raises(BadConfig, match=r"do not form a batch: .*; give the data class a collate_fn"):
        source.gather(np.array([0, 1]))
