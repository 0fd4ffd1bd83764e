"""A module's attributes after a client: those before it, whatever the client did to them."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric, MetricCollection

from raylfl.runtime.workers.attributes import Attributes, resettable


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.count, self.text, self.nothing = 0, "before", None
        self.listed, self.named, self.held, self.queue = [1], {"a": 1}, {1}, deque([1])


class Whole(Part):
    def __init__(self):
        super().__init__()
        self.inner = Part()


def seen(part):
    names = ("count", "text", "nothing", "listed", "named", "held", "queue")
    return {name: getattr(part, name, "gone") for name in names}


BEFORE = {
    "count": 0, "text": "before", "nothing": None, "listed": [1], "named": {"a": 1}, "held": {1}, "queue": deque([1]),
}  # fmt: skip


def assign(part):
    part.count, part.text, part.nothing = 5, "after", 3
    part.listed, part.named, part.held, part.queue = [], 2, None, "queue"


def change(part):
    part.count += 1
    part.listed.append(2)
    part.named["b"] = 2
    part.held.clear()
    part.queue.popleft()


def delete(part):
    for name in BEFORE:
        delattr(part, name)


def add(part):
    part.new, part.newer = 1, [2]


@pytest.mark.parametrize("spoil", [assign, change, delete, add])
@pytest.mark.parametrize("where", ["outer", "inner", "both"])
def test_every_attribute_is_as_before_however_often(spoil, where):
    module = Whole()
    attributes = Attributes(module)
    parts = {"outer": [module], "inner": [module.inner], "both": [module, module.inner]}[where]
    for _ in range(2):
        for part in parts:
            spoil(part)
        attributes.restore()
        assert [seen(part) for part in (module, module.inner)] == [BEFORE, BEFORE]
        assert not any(hasattr(part, name) for part in parts for name in ("new", "newer"))


def test_parameters_buffers_and_modes_are_left_alone():
    module = Whole()
    attributes = Attributes(module)
    with torch.no_grad():
        module.layer.weight.fill_(3.0)
    module.eval()
    attributes.restore()
    assert bool((module.layer.weight == 3.0).all())
    assert not module.training
    assert not module.inner.training


def test_metric_objects_are_reset_and_those_within_others_by_them():
    module = Whole()
    module.mean, module.many = MeanMetric(), MetricCollection({"a": MeanMetric()})
    attributes = Attributes(module)
    for metric in (module.mean, module.many["a"]):
        metric.update(3.0)
    attributes.restore()
    assert [metric.update_count for metric in (module.mean, module.many["a"])] == [0, 0]
    assert [resettable(part) for part in (module.mean, module.many, module.layer)] == [True, True, False]


def test_a_part_with_a_reset_of_its_own_is_no_metric():
    class Memory(Part):
        def reset(self):
            raise AssertionError

    module = Whole()
    module.memory = Memory()
    attributes = Attributes(module)
    assign(module.memory)
    attributes.restore()
    assert seen(module.memory) == BEFORE


def test_generators_are_named_with_their_place():
    module = Whole()
    module.rng, module.inner.rng = np.random.default_rng(0), torch.Generator()
    module.inner.old, module.inner.plain = np.random.RandomState(0), random.Random(0)
    assert sorted(Attributes(module).generators) == ["inner.old", "inner.plain", "inner.rng", "rng"]
    assert Attributes(Whole()).generators == []


def test_tensors_changed_in_place_are_named_unless_they_are_trained_or_buffers():
    module = Whole()
    module.seen, module.inner.kept, module.left = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    module.register_buffer("buffer", torch.zeros(2))
    module.inner.layer.bias.requires_grad_(False)
    attributes = Attributes(module)
    assert attributes.changed_tensors() == []
    with torch.no_grad():
        for tensor in (module.seen, module.inner.kept, module.buffer, module.layer.weight, module.inner.layer.bias):
            tensor.add_(1.0)
    assert sorted(attributes.changed_tensors()) == ["inner.kept", "inner.layer.bias", "seen"]
