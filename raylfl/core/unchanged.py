"""Finds the attributes of an object that have changed since it was made."""

from __future__ import annotations

import pickle
from functools import cached_property
from inspect import getattr_static
from typing import Any

from raylfl.errors import BadConfig


class ChangedItself(BadConfig):
    """The error for an algorithm that keeps state on itself."""


class Unchanged:
    """A comparison of an algorithm's attributes with their first values.

    State that a run keeps on the algorithm is in no checkpoint, and each worker would have its own. The values of
    cached properties are not compared: they are made again where they are missing.
    """

    def __init__(self, algorithm: Any):
        self.algorithm, self.first = algorithm, contents_of(algorithm)

    def check(self, r: int) -> None:
        """Raises ChangedItself if an attribute has changed; r: the number of the current round, for the message."""
        now, missing = contents_of(self.algorithm), object()
        changed = [name for name in {**self.first, **now} if self.first.get(name, missing) != now.get(name, missing)]
        if changed:
            raise ChangedItself(
                f"algorithm {type(self.algorithm).__name__}: round {r} changed its attribute {', '.join(changed)}, "
                "which no checkpoint holds and every worker has for itself: keep state in the server state "
                "(init_server) or the client states (init_clients)"
            )


def contents_of(thing: Any) -> dict[str, Any]:
    """The attributes of an object: name -> pickle, or for a value that has no pickle, its identity and attributes."""
    contents: dict[str, Any] = {}
    for name, value in vars(thing).items():
        if isinstance(getattr_static(type(thing), name, None), cached_property):
            continue
        try:
            contents[name] = pickle.dumps(value)
        except Exception:  # an object of a local class; a lock or a function, which has no attributes
            contents[name] = id(value), contents_of(value) if getattr(value, "__dict__", None) else None
    return contents
