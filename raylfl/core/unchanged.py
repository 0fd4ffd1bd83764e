"""Finds the attributes of an object that have changed since it was made."""

import pickle
from functools import cached_property
from typing import Any

from raylfl.errors import BadConfig


class ChangedItself(BadConfig):
    """The error for an algorithm that keeps state on itself."""


class Unchanged:
    """A comparison of the attributes of an algorithm and its class with their first values.

    State that a run keeps on the algorithm is in no checkpoint, and each worker would have its own. The values of
    cached properties are not compared: they are made again where they are missing.
    """

    def __init__(self, algorithm: Any):
        self.algorithm = algorithm
        bases, known = type(algorithm).__mro__[-2::-1], ("raylfl.", "abc", "typing")
        self.classes = [cls for cls in bases if not cls.__module__.startswith(known)]  # outside raylfl
        self.first = self._contents()

    def check(self, r: int) -> None:
        """Raises ChangedItself if an attribute has changed; r: the number of the current round, for the message."""
        if (now := self._contents()) != self.first:
            changed = [name for name in {**self.first, **now} if self.first.get(name) != now.get(name)]
            raise ChangedItself(
                f"algorithm {type(self.algorithm).__name__}: round {r} changed its attribute {', '.join(changed)}, "
                "which no checkpoint holds and every worker has for itself: keep state in the server state "
                "(init_server) or the client states (init_clients)"
            )

    def _contents(self) -> dict[str, Any]:
        """The attributes of the algorithm and, without functions, of its `classes`, as `_pickles`."""
        values: dict[str, Any] = {}
        for cls in self.classes:
            plain = {name: v for name, v in vars(cls).items() if not callable(v) and not hasattr(v, "__get__")}
            values |= {name: v for name, v in plain.items() if not name.startswith(("__", "_abc_"))}
        return _pickles(type(self.algorithm), values | vars(self.algorithm))


def _pickles(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Name -> pickle of the value, or for a value that has no pickle, its identity and attributes."""
    contents: dict[str, Any] = {}
    for name, value in values.items():
        try:
            if not isinstance(getattr(cls, name, None), cached_property):
                contents[name] = pickle.dumps(value)
        except Exception:  # an object of a local class; a lock or a function, which has no attributes
            inner = getattr(value, "__dict__", None)
            contents[name] = id(value), _pickles(type(value), inner) if inner else None
    return contents
