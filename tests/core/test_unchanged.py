"""Attributes of an algorithm that change are found, whatever they are."""

import threading
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pytest
import torch

from raylfl.core.unchanged import Unchanged
from raylfl.errors import BadConfig


@dataclass
class Inner:
    a: int = 1


class Plain:
    def __init__(self):
        self.n = 0


@dataclass
class Method:
    number: float = 1.0
    nan: float = float("nan")
    words: list = field(default_factory=lambda: ["a", [1]])
    table: dict = field(default_factory=lambda: {"x": {"y": [1]}})
    vector: torch.Tensor = field(default_factory=lambda: torch.tensor([1.0, torch.nan]))
    array: np.ndarray = field(default_factory=lambda: np.zeros(2))
    inner: Inner = field(default_factory=Inner)
    plain: Plain = field(default_factory=Plain)
    lock: object = field(default_factory=threading.Lock)  # cannot be copied
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    gone: int = field(default_factory=int)

    @cached_property
    def twice(self):
        return 2 * self.number


CHANGES = {
    "number": lambda m: setattr(m, "number", 2.0),
    "words": lambda m: m.words[1].append(2),
    "table": lambda m: m.table["x"]["y"].clear(),
    "vector": lambda m: m.vector.add_(1),
    "array": lambda m: m.array.__setitem__(1, 3),
    "inner": lambda m: setattr(m.inner, "a", 2),
    "plain": lambda m: setattr(m.plain, "n", 1),
    "draw": lambda m: m.draw.random(),
    "new": lambda m: setattr(m, "new", 1),
    "gone": lambda m: delattr(m, "gone"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_attribute_is_named(name):
    method = Method()
    unchanged = Unchanged(method)
    assert method.twice == 2.0  # a cached property is no state
    unchanged.check(0)
    CHANGES[name](method)
    with pytest.raises(BadConfig, match=rf"algorithm Method: round 3 changed its attribute {name}, .*init_server"):
        unchanged.check(3)
