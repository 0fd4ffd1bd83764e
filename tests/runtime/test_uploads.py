"""Uploads are gathered in the memory of the previous round, unless it is still referenced."""

import numpy as np
import pytest
import torch

from raylfl.algorithms import ALGORITHMS
from raylfl.runtime.round import dispatch
from raylfl.runtime.round.dispatch import UploadMemory
from tests.runtime.faults import carry_out, options_of, outcome
from tests.runtime.tiny import TINY
from tests.shares import one_in


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(dispatch, "LARGE", 0)


def test_memory_is_taken_again_when_it_is_free_and_never_before(always):
    memory = UploadMemory()
    first = memory.stack("update", [torch.ones(2, 3), torch.zeros(1, 3)])
    assert torch.equal(first, torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3]))
    place, view = first.data_ptr(), first[1:].view(-1)[:2]
    del first
    second = memory.stack("update", [torch.full((3, 3), 2.0)])
    assert second.data_ptr() != place  # a view of the first still exists
    assert view.tolist() == [1.0, 1.0]
    place = second.data_ptr()
    del second
    third = memory.stack("update", [torch.full((2, 3), 3.0)])
    assert third.data_ptr() == place
    assert memory.stack("buffers", [torch.ones(1, 2)]).data_ptr() != place
    assert memory.stack("update", [torch.ones(1, 3, dtype=torch.float64)]).dtype == torch.float64
    assert third.tolist() == [[3.0] * 3] * 2


def test_rows_of_tasks_are_put_into_the_order_of_the_cohort(always):
    pieces = [torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0]])]
    assert UploadMemory().stack("update", pieces, np.array([0, 2, 1])).tolist() == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize("algorithm", one_in(4, ALGORITHMS.names()))
def test_no_algorithm_is_harmed(tmp_path, monkeypatch, algorithm):
    config = {**TINY, "rounds": 4, "algorithm": options_of(algorithm), "checkpoint": {"every": 0}}
    config["eval"] = {"every": 4, "inconsistency": False}
    carry_out(config, tmp_path / "fresh")
    monkeypatch.setattr(dispatch, "LARGE", 0)
    carry_out(config, tmp_path / "reused")
    assert outcome(tmp_path / "reused") == outcome(tmp_path / "fresh")
