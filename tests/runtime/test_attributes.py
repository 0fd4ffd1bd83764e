"""A module's attributes after a client: those before it, whatever the client did to them."""

from __future__ import annotations

import copy
import logging
import random
from collections import Counter, OrderedDict, defaultdict, deque

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


class Meter:
    def __init__(self):
        self.n = 0


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


class Log(list):
    """A list with an attribute."""


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2))
        self.meter, self.slotted, self.log = Meter(), Slotted(), Log([1])
        self.deep = {"a": [[0], (Meter(),)]}
        self.counts, self.ordered = defaultdict(int, a=1), OrderedDict(a=1, b=2)
        self.counter, self.queue, self.array = Counter("aab"), deque([1, 2], maxlen=2), np.zeros(2)
        self.alias = self.meter
        self.layers[0].register_forward_hook(self.meter_hook)
        self.log.meter = self.meter

    def meter_hook(self, *given):
        self.meter.n += 1


def state(m):
    plain = [list(m.log), m.deep["a"][0], dict(m.counts), list(m.ordered.items()), m.counter, m.queue, list(m.array)]
    numbers = [m.meter.n, m.slotted.n, m.deep["a"][1][0].n, len(m.layers), len(m.layers[0]._forward_hooks)]
    return [*map(copy.deepcopy, plain), *numbers, sorted(vars(m.meter)), sorted(vars(m.log))]


def spoil(m):
    m.meter.n, m.meter.new, m.slotted.n, m.log.other = 5, 6, 7, 8
    m.log.append(2)
    m.deep["a"][0][0], m.deep["a"][1][0].n = 3, 4
    m.deep["b"] = []
    m.counts["x"] += 1
    m.ordered.move_to_end("a")
    m.ordered["c"] = 1
    m.counter["a"] += 1
    m.queue.append(3)
    m.array += 1
    m.layers.append(nn.ReLU())
    m.layers[0].register_forward_hook(lambda *given: None)


def test_objects_in_attributes_are_restored_in_place_at_any_depth():
    module = Nested()
    attributes, before, objects = Attributes(module), state(module), (module.meter, module.log, module.array)
    for _ in range(2):
        spoil(module)
        assert state(module) != before
        attributes.restore()
        assert state(module) == before
        assert all(a is b for a, b in zip((module.meter, module.log, module.array), objects, strict=True))
        assert module.alias is module.meter is module.log.meter


def test_objects_of_libraries_are_left_alone():
    """Such as a logger, which refers to the loggers of all other modules."""
    module = Whole()
    module.logger = logging.getLogger("attributes")
    attributes = Attributes(module)
    module.logger.setLevel(logging.ERROR)
    attributes.restore()
    assert module.logger.level == logging.ERROR


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
    module.listed.append(random.Random(0))
    module.inner.old, module.inner.plain = np.random.RandomState(0), random.Random(0)
    assert sorted(Attributes(module).generators) == ["inner.old", "inner.plain", "inner.rng", "listed", "rng"]
    assert Attributes(Whole()).generators == []


def test_tensors_changed_in_place_are_named_unless_they_are_trained_or_buffers():
    module = Whole()
    module.seen, module.inner.kept, module.left = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    module.listed.append(torch.zeros(2))
    module.queue.append(module.layer.weight)
    module.register_buffer("buffer", torch.zeros(2))
    module.inner.layer.bias.requires_grad_(False)
    attributes = Attributes(module)
    assert attributes.changed_tensors() == []
    with torch.no_grad():
        for tensor in (
            module.seen,
            module.inner.kept,
            module.buffer,
            module.layer.weight,
            module.inner.layer.bias,
            module.listed[-1],
        ):
            tensor.add_(1.0)
    assert sorted(attributes.changed_tensors()) == ["inner.kept", "inner.layer.bias", "listed", "seen"]
