"""The content of a module's attributes: what counts as a change of state by a step, and under which name."""

from __future__ import annotations

import copy
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raylfl.core.recorded.state import ENTRIES, first_difference, state_of


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def tell(self) -> int:
        return self.count


class Stateful(nn.Module):
    """One attribute of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(2))
        self.count, self.label = 0, "a"
        self.seen, self.by_name = [1, 2], {"loss": 0.0}
        self.draws, self.table = np.random.default_rng(0), np.zeros(3)
        self.slotted, self.told, self.scaled = Slotted(), Slotted().tell, partial(max, by=[])
        self.deep = [[[[[[0]]]]]]
        self.plain, self.ids = torch.zeros(2), {3}


def assign_buffer(module: Any) -> None:
    module.mean = torch.ones(2)


def assign_parameter(module: Any) -> None:
    module.layer.weight = nn.Parameter(torch.ones(2, 2))


CHANGES = {
    "mean": assign_buffer,
    "layer.weight": assign_parameter,
    "other": lambda m: setattr(m, "other", nn.Linear(2, 2)),
    "layer.bias (requires_grad)": lambda m: m.layer.bias.requires_grad_(False),
    "count": lambda m: setattr(m, "count", 1),
    "label": lambda m: setattr(m, "label", "b"),
    "seen[1]": lambda m: m.seen.__setitem__(1, 3),
    "seen": lambda m: m.seen.append(3),
    "by_name['loss']": lambda m: m.by_name.update(loss=1.0),
    "draws": lambda m: m.draws.random(),
    "table": lambda m: m.table.__setitem__(0, 1.0),
    "plain": lambda m: m.plain.add_(1.0),  # no buffer
    "slotted.count": lambda m: setattr(m.slotted, "count", 1),
    "deep[0][0][0][0][0][0]": lambda m: m.deep[0][0][0][0][0].__setitem__(0, 1),
    "scaled.keywords['by']": lambda m: m.scaled.keywords["by"].append(1),
    "told.__self__.count": lambda m: setattr(m.told.__self__, "count", 1),
    "ids{}": lambda m: m.ids.symmetric_difference_update({3, 4}),
    "new": lambda m: setattr(m, "new", 1),
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_is_named_by_its_path(path):
    module = Stateful()
    before = state_of(module)
    assert first_difference(before, state_of(module)) is None
    CHANGES[path](module)
    assert first_difference(before, state_of(module)) == path


@pytest.mark.parametrize("make", [random.Random, np.random.RandomState, np.random.default_rng, torch.Generator])
def test_a_generator_changes_with_every_draw(make):
    module = Stateful()
    module.source = make()
    before = state_of(module)
    assert first_difference(before, state_of(module)) is None
    torch.rand(1, generator=module.source) if make is torch.Generator else module.source.random()
    assert first_difference(before, state_of(module)) == "source"


@pytest.mark.parametrize(("entries", "compared"), [(ENTRIES, True), (ENTRIES + 1, False)])
def test_arrays_of_more_entries_than_the_limit_are_compared_by_identity(entries, compared):
    module = Stateful()
    module.table = np.zeros(entries)
    before = state_of(module)
    module.table[-1] = 1.0
    assert first_difference(before, state_of(module)) == ("table" if compared else None)
    module.table = module.table.copy()
    assert first_difference(before, state_of(module)) == "table"


def test_an_iterator_is_taken_for_changed_since_it_cannot_be_looked_at():
    module = Stateful()
    module.source = iter([1, 2])
    assert first_difference(state_of(module), state_of(module)) == "source"


def test_an_attribute_that_holds_itself_is_compared_once():
    module = Stateful()
    module.seen.append(module.seen)
    before = state_of(module)
    assert first_difference(before, state_of(module)) is None
    module.seen[0] = 7
    assert first_difference(before, state_of(module)) == "seen[0]"


def test_parameters_and_buffers_may_change_their_values():
    module = Stateful()
    before = state_of(module)
    with torch.no_grad():
        module.layer.weight.add_(1.0)
        module.mean.add_(1.0)
    assert first_difference(before, state_of(module)) is None


def test_parameters_and_buffers_may_be_listed_in_attributes_too():
    """As torch's recurrent layers list them: local.optimizer=module changes them in place."""
    module = Stateful()
    module.listed = [module.layer.weight, module.mean]
    before = state_of(module)
    with torch.no_grad():
        module.layer.weight.add_(1.0)
        module.mean.add_(1.0)
    assert first_difference(before, state_of(module)) is None
    module.listed[0] = torch.ones(2, 2)
    assert first_difference(before, state_of(module)) == "listed[0]"


def test_containers_with_equal_parts_are_equal():
    module = Stateful()
    before = state_of(module)
    module.seen, module.by_name = copy.copy(module.seen), dict(module.by_name)
    assert first_difference(before, state_of(module)) is None
