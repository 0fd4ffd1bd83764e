"""The values that one call of `training_step` logs: tensors by name, which are read only after the local work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor


class LogCall(NamedTuple):
    """A call of `self.log`."""

    name: str
    value: Any
    options: dict[str, Any]


class StepLog:
    """The logged values of the current local step.

    A value has one entry per client if the step serves several. sink: receives each call of `self.log`; None: calls are
    ignored. options: the options of the newest call for each name in `values`.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.options: dict[str, dict[str, Any]] = {}
        self.sink: Callable[..., None] | None = None
        self._noted: list[LogCall] | None = None

    def take(self) -> dict[str, Tensor]:
        """Returns the values logged since the last call, and removes them."""
        values, self.values = self.values, {}
        return values

    @contextmanager
    def calls(self) -> Iterator[list[LogCall]]:
        """A context with a list that records all calls of `self.log`, besides their usual effect."""
        before, self._noted = self._noted, []
        try:
            yield self._noted
        finally:
            self._noted = before

    def note(self, name: str, value: Any, options: dict[str, Any]) -> None:
        """Records a call of `self.log` in the list of `calls`."""
        if self._noted is not None:
            self._noted.append(LogCall(name, value, options))
