"""Batches of a data set, and the owners of its samples."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from raylfl.core.population import ClientShards
from raylfl.core.samples import BatchSource, SampleSet
from raylfl.errors import BadConfig

CPU = torch.device("cpu")


class Items(Dataset):
    """A map-style set without tensors."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int):
        return torch.full((2,), float(i)), i % 3


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
