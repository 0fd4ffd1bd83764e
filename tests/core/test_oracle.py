"""The loss that `training_step` returns: what is one, and how anything else is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raylfl.core.reference import loss_of
from raylfl.errors import BadConfig


@pytest.mark.parametrize("returned", [torch.tensor(2.5), torch.tensor([2.5]), {"loss": torch.tensor([[2.5]]), "n": 1}])
def test_a_loss_is_one_number_or_the_entry_of_that_name(returned):
    assert torch.equal(loss_of(returned, nn.Module()), torch.tensor(2.5))


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (torch.ones(3, 2), "a tensor of shape (3, 2)"),
        (torch.ones(0), "a tensor of shape (0,)"),
        (None, "NoneType"),
        (2.5, "float"),
        ({"cost": torch.tensor(1.0)}, "NoneType"),
        ({"loss": torch.ones(2)}, "a tensor of shape (2,)"),
    ],
)
def test_anything_else_is_refused_with_what_it_is(returned, shown):
    with pytest.raises(BadConfig) as told:
        loss_of(returned, nn.Linear(1, 1))
    assert f"Linear.training_step returned {shown}, but must return the loss" in str(told.value)
    assert ("(to skip a batch, return a loss whose gradient is 0)" in str(told.value)) == (returned is None)
