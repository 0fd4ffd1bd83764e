"""A result that is still being computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Deferred(Generic[T]):
    """Work under way; `result()` waits for it, or carries it out if nothing has happened yet.

    >>> Deferred(lambda: 20).then(lambda n: n + 1).result()
    21
    """

    def __init__(self, wait: Callable[[], T]):
        self._wait = wait

    def result(self) -> T:
        """The result; raises what the work raised. To be called once."""
        return self._wait()

    def then(self, step: Callable[[T], U]) -> Deferred[U]:
        """The result of `step` on this one's, computed when it is waited for."""
        return Deferred(lambda: step(self.result()))

    @staticmethod
    def of(value: T) -> Deferred[T]:
        """A result that is there already."""
        return Deferred(lambda: value)
