"""A result that is still being computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Deferred(Generic[T]):
    """Work in progress; `result()` waits for it, or carries it out if it has not started.

    >>> Deferred(lambda: 20).then(lambda n: n + 1).result()
    21
    """

    def __init__(self, wait: Callable[[], T]):
        self._wait = wait

    def result(self) -> T:
        """The result; re-raises the work's exception. Call it once."""
        return self._wait()

    def then(self, step: Callable[[T], U]) -> Deferred[U]:
        """A deferred `step(self.result())`; `step` runs when the new result is awaited."""
        return Deferred(lambda: step(self.result()))

    @staticmethod
    def of(value: T) -> Deferred[T]:
        """A deferred result whose value is known already."""
        return Deferred(lambda: value)
