"""Values that `training_step` logs in one call: tensors by name, not read before the local work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor


class LogCall(NamedTuple):
    """One call of `self.log`."""

    name: str
    value: Any
    options: dict[str, Any]


class StepLog:
    """Values of the current local step; a row a client where a call is for several.

    sink: what takes each call of `self.log` now; None: they go nowhere.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.sink: Callable[..., None] | None = None
        self._heard: list[LogCall] | None = None

    def take(self) -> dict[str, Tensor]:
        """The values since the last call of this; they are gone then."""
        values, self.values = self.values, {}
        return values

    @contextmanager
    def hearing(self) -> Iterator[list[LogCall]]:
        """Within it each call of `self.log` is noted in the list, beside what becomes of it."""
        before, self._heard = self._heard, []
        try:
            yield self._heard
        finally:
            self._heard = before

    def hear(self, name: str, value: Any, options: dict[str, Any]) -> None:
        """The sink is told of each call that it gets."""
        if self._heard is not None:
            self._heard.append(LogCall(name, value, options))
