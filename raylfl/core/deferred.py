"""Deferred results: values that are computed later or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Deferred(Generic[T]):
    """The result of work in progress; `result()` waits for the work, or starts it if it has not started.

    >>> Deferred(lambda: 20).then(lambda n: n + 1).result()
    21
    """

    def __init__(self, wait: Callable[[], T]):
        self._wait = wait

    def result(self) -> T:
        """The result of the work, or its exception; call it only once, because it may start the work."""
        return self._wait()

    def then(self, step: Callable[[T], U]) -> Deferred[U]:
        """The deferred result of `step(self.result())`; `step` runs when that result is awaited."""
        return Deferred(lambda: step(self.result()))

    @staticmethod
    def of(value: T) -> Deferred[T]:
        """A deferred result with a known value."""
        return Deferred(lambda: value)
