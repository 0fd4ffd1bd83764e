"""Variables outside a module: the ones that its training step may read are part of its state, others are not."""

from __future__ import annotations

import itertools
import logging
from functools import lru_cache, partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from raylfl.core.recorded.state import first_difference, outside_of, state_of
from tests.core import user_modules

NUMBER = 0
SETTINGS = {"scale": 1.0}
OPTIONS = SimpleNamespace(warm=False)
CALLED = partial(len, {})
LOG = logging.getLogger("tests.outside")
UNREAD = {0: 0}
EVALUATED = [0]
grown = {0: 0}  # has the name of a method that the step calls


class Schedule:
    power = 1

    def __init__(self):
        self.round = 0

    @property
    def rate(self):
        return self.power * self.round


SCHEDULE = Schedule()


def ticker():
    ticks = 0

    def tick():
        nonlocal ticks
        ticks += 1
        return ticks

    return tick


@lru_cache
def helper(known):
    return OPTIONS.warm and known


def rated():
    return rated.rate


rated.rate = 0


class Base(nn.Module):
    calls = 0

    def grown(self, value, seen=[]):  # noqa: B006 - users write such defaults
        return value * len(seen)


class Reader(Base):
    unused = 0

    def __init__(self):
        super().__init__()
        self.tick = ticker()

    @torch.no_grad()
    def training_step(self, batch, batch_idx):
        LOG.info("a step")
        scale = SETTINGS["scale"] + NUMBER + CALLED() + SCHEDULE.rate + len(user_modules.NOTES)
        return self.grown(scale) if helper(True) else self.calls + rated() + self.tick()

    def validation_step(self, batch, batch_idx):
        EVALUATED[0] += 1


HERE = __name__
CHANGES = {
    f"{HERE}.NUMBER": lambda m, patch: patch.setitem(globals(), "NUMBER", 1),
    f"{HERE}.SETTINGS['scale']": lambda m, patch: patch.setitem(SETTINGS, "scale", 2.0),
    f"{HERE}.OPTIONS.warm": lambda m, patch: patch.setattr(OPTIONS, "warm", True),
    f"{HERE}.CALLED.args[0]": lambda m, patch: patch.setitem(CALLED.args[0], 0, 1),
    f"{HERE}.SCHEDULE.round": lambda m, patch: patch.setattr(SCHEDULE, "round", 1),
    f"{HERE}.Schedule.power": lambda m, patch: patch.setattr(Schedule, "power", 2),
    f"{HERE}.Base.calls": lambda m, patch: patch.setattr(Base, "calls", 1),
    f"{HERE}.Base.grown.__defaults__": lambda m, patch: patch.setattr(Base.grown, "__defaults__", ([1],)),
    f"{HERE}.helper": lambda m, patch: patch.setitem(globals(), "helper", bool),
    f"{HERE}.ticker.<locals>.tick.ticks": lambda m, patch: m.tick(),
    f"{HERE}.rated.__dict__['rate']": lambda m, patch: patch.setattr(rated, "rate", 1),
    "tests.core.user_modules.NOTES": lambda m, patch: patch.setitem(user_modules.NOTES, "here", []),
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_of_a_variable_that_the_step_reads_is_named_by_its_path(path, monkeypatch):
    module = Reader()
    before = state_of(module)
    assert first_difference(before, state_of(module)) is None
    outside = outside_of(before)
    CHANGES[path](module, monkeypatch)
    assert first_difference(before, state_of(module)).startswith(path)
    assert first_difference(outside, outside_of(before)).startswith(path)


def test_variables_that_the_step_does_not_read_and_other_packages_do_not_count(monkeypatch):
    module = Reader()
    before = state_of(module)
    monkeypatch.setitem(UNREAD, 0, 1)
    monkeypatch.setattr(Reader, "unused", 1)
    module.validation_step(None, 0)
    monkeypatch.setitem(grown, 0, 1)
    monkeypatch.setattr(LOG, "level", logging.ERROR)
    monkeypatch.setattr(torch.nn.functional, "threshold", itertools.count())
    assert first_difference(before, state_of(module)) is None
