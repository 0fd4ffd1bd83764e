"""Batches of a data set, and the owners of its samples."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from raylfl.core.samples import BatchSource, SampleSet, Shards

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


def test_the_transform_acts_on_inputs_when_they_are_used():
    samples = SampleSet.of(TensorDataset(torch.ones(3, 2), torch.arange(3)), lambda x: x * 5)
    batch = BatchSource(samples, CPU, torch.float32).batch(np.array([0]))
    assert batch.content[0].tolist() == [[5.0, 5.0]]
    assert samples.arrays[0].max() == 1.0


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8))
def test_shards_give_back_the_lists_they_were_made_of(lists):
    shards = Shards.of([np.array(x, dtype=np.int64) for x in lists])
    assert [shards[i].tolist() for i in range(len(lists))] == lists
    assert shards.sizes.tolist() == [len(x) for x in lists]
