"""A module's attributes after a client: those before it, whatever the client did to them."""

import copy
import logging
import random
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric, MetricCollection

from raylfl.core.flat import FlatModule
from raylfl.replay.effects import checksum, resettable
from raylfl.runtime.workers.attributes import Attributes


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.listed, self.queue = nn.Linear(2, 2), [1], deque([1])


class Whole(Part):
    def __init__(self):
        super().__init__()
        self.inner = Part()


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
        self.text, self.nothing, self.old, self.held = "before", None, [1], {1}
        self.inner = Part()
        self.alias = self.meter
        self.layers[0].register_forward_hook(self.meter_hook)
        self.log.meter = self.meter

    def meter_hook(self, *given):
        self.meter.n += 1


def state(m):
    plain = [list(m.log), m.deep["a"][0], dict(m.counts), list(m.ordered.items()), m.counter, m.queue, list(m.array)]
    numbers = [m.meter.n, m.slotted.n, m.deep["a"][1][0].n, len(m.layers), len(m.layers[0]._forward_hooks)]
    texts = [
        m.text,
        m.nothing,
        list(getattr(m, "old", "gone")),
        sorted(m.held),
        list(m.inner.listed),
        list(m.inner.queue),
    ]
    names = [sorted(vars(part)) for part in (m, m.meter, m.log, m.inner)]
    return [*map(copy.deepcopy, plain), *numbers, *texts, *names]


def spoil(m):
    m.text, m.nothing, m.new, m.inner.listed = "after", 3, [4], "a list"
    del m.old
    m.held.clear()
    m.inner.queue.popleft()
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
    module.memory.listed = []
    attributes.restore()
    assert module.memory.listed == [1]


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
        for tensor in (module.seen, module.inner.kept, module.buffer, module.layer.weight, module.listed[-1]):
            tensor.add_(1.0)
        module.inner.layer.bias.add_(1.0)
    assert sorted(attributes.changed_tensors()) == ["inner.kept", "inner.layer.bias", "listed", "seen"]


class Target(nn.Module):
    """A trained layer, a frozen one that follows it, and a mean of its outputs in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.online, self.target = nn.Linear(2, 2), nn.Linear(2, 2)
        self.target.requires_grad_(False)
        self.means = [torch.zeros(2)]


@pytest.mark.parametrize("way", ["in place", "data in place", "new data"])
def test_tensors_that_were_changed_have_the_first_entries_again(way):
    torch.manual_seed(0)
    module = Target()

    def make():
        torch.manual_seed(0)
        return Target()

    attributes, trained = Attributes(module, make=make), module.online.weight.detach().clone()
    first = [module.target.weight.clone(), module.means[0].clone()]
    for _ in range(2):
        for tensor in (module.target.weight, module.means[0]):
            if way == "in place":
                tensor.mul_(0.5).add_(1.0)
            elif way == "data in place":
                tensor.data.mul_(0.5).add_(1.0)
            else:
                tensor.data = tensor.data * 0.5 + 1.0
        assert sorted(attributes.changed_tensors()) == ["means", "target.weight"]
        attributes.restore()
        assert torch.equal(module.target.weight, first[0])
        assert torch.equal(module.means[0], first[1])
    assert sorted(attributes.changed_tensors()) == ["means", "target.weight"]  # the run's warning names them
    assert torch.equal(module.online.weight, trained)


def test_views_of_buffers_are_left_to_the_tasks_that_set_them():
    module, made = nn.Linear(2, 2), nn.Linear(2, 2)
    for each in (module, made):
        each.register_buffer("rows", torch.zeros(2, 3))
        each.row = each.rows[0]
    attributes = Attributes(module, make=lambda: made)
    module.rows += 1.0  # as a task sets it
    attributes.restore()
    assert attributes.changed_tensors() == []
    assert torch.equal(module.rows, torch.ones(2, 3))


def test_the_checksum_sees_each_entry_and_no_memory_that_is_freed():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64):
        tensor = torch.zeros(2, 3, dtype=dtype)
        first = checksum(tensor)
        tensor.T[1, 1] = 1
        assert checksum(tensor) == checksum(tensor.T) != first
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    assert checksum(freed) == checksum(torch.eye(2).to_sparse()) == 0


def test_first_entries_are_found_for_a_module_that_has_other_memory_than_a_new_one():
    """A flat module's parameters have memory of their own, so that what was a view of one is a tensor by itself."""

    def make():
        torch.manual_seed(0)
        module = Target()
        module.before, module.row, module.after = torch.zeros(5), module.online.weight.detach()[0], torch.ones(7)
        return module

    module = make()
    FlatModule(module, torch.float32, torch.device("cpu"))
    attributes = Attributes(module, make=make)
    for tensor in (module.before, module.after, module.means[0]):
        tensor += 3.0
    attributes.restore()
    assert module.before.tolist() == [0.0] * 5
    assert module.after.tolist() == [1.0] * 7
    assert module.means[0].tolist() == [0.0] * 2
