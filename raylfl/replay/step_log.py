"""The values that one call of `training_step` logs by `self.log`: tensors by name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor


class LogCall(NamedTuple):
    """A call of Lightning's `self.log` in `training_step`, with its arguments."""

    name: str
    value: Any
    options: dict[str, Any]


class StepLog:
    """The values that the current local step has logged.

    values: name -> tensor, with one entry per client if one step serves several clients. options: name -> options of
    the last call of `self.log` with this name. sink: receives the calls of `self.log` when a recorded step is replayed;
    None: replays drop them.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.options: dict[str, dict[str, Any]] = {}
        self.sink: Callable[..., None] | None = None
        self._noted: list[LogCall] | None = None

    def take(self) -> dict[str, Tensor]:
        """Returns the values logged since the last `take`, and removes them."""
        values, self.values = self.values, {}
        return values

    @contextmanager
    def calls(self) -> Iterator[list[LogCall]]:
        """A context with a list to which `note` adds all calls of `self.log`."""
        outer, self._noted = self._noted, []
        try:
            yield self._noted
        finally:
            self._noted = outer

    def note(self, name: str, value: Any, options: dict[str, Any]) -> None:
        """Adds a call of `self.log` to the list of `calls`; does nothing outside that context."""
        if self._noted is not None:
            self._noted.append(LogCall(name, value, options))
