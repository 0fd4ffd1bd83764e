"""Finds the attributes of an object that have changed since it was made."""

from __future__ import annotations

import copy
import pickle
from functools import cached_property
from inspect import getattr_static
from typing import Any

import numpy as np
from torch import Tensor

from raylfl.errors import BadConfig


class ChangedItself(BadConfig):
    """The error for an algorithm that keeps state on itself."""


class Unchanged:
    """A comparison of an algorithm's attributes with copies of their first values.

    State that a run keeps on the algorithm is in no checkpoint, and each worker would have its own. The values of
    cached properties are not compared: they are made again where they are missing.
    """

    def __init__(self, algorithm: Any):
        self.algorithm, self.first = algorithm, dict[str, Any]()
        for name, value in vars(algorithm).items():
            try:
                self.first[name] = copy.deepcopy(value)
            except Exception:  # an object that cannot be copied is compared with itself
                self.first[name] = value

    def check(self, r: int) -> None:
        """Raises ChangedItself if an attribute has changed; r: the number of the current round, for the message."""
        now, cls = vars(self.algorithm), type(self.algorithm)
        changed = [
            name
            for name in [*self.first, *(now.keys() - self.first.keys())]
            if not isinstance(getattr_static(cls, name, None), cached_property)
            and (name not in now or name not in self.first or not same_value(now[name], self.first[name]))
        ]
        if changed:
            raise ChangedItself(
                f"algorithm {cls.__name__}: round {r} changed its attribute {', '.join(changed)}, which no checkpoint "
                "holds and every worker has for itself: keep state in the server state (init_server) or the client "
                "states (init_clients)"
            )


def same_value(a: Any, b: Any) -> bool:
    """Whether two values are equal: tensors, arrays, containers and objects entry by entry; NaN is equal to NaN."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, float) and a != a:
        return bool(b != b)
    try:
        if bool(a == b):
            return True
    except Exception:
        return False
    if getattr(type(a), "__eq__", None) is not object.__eq__:  # its own comparison says that they differ
        return False
    if hasattr(a, "__dict__"):
        return same_value(vars(a), vars(b))
    try:
        return pickle.dumps(a) == pickle.dumps(b)  # such as a random generator
    except Exception:
        return True  # it cannot be compared
