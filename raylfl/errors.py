"""The user's mistakes, said in the user's words: key, value, remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RaylflError(Exception):
    """Anything that ends a run with a message meant for people (exit code 1)."""


class BadConfig(RaylflError):
    """A mistake in a config, or several found together (exit code 2)."""

    def __init__(self, problems: str | Sequence[str]):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class BadValue(BadConfig):
    """One value that cannot be: `partition.classes=12, but must be 1..10 (dirichlet has no such bound)`.

    key is relative to the component that raises; `at` adds the component's place in the config.
    """

    def __init__(self, key: str, *, got: object, need: str, hint: str = ""):
        self.key, self.got, self.need, self.hint = key, got, need, hint
        tail = f" ({hint})" if hint else ""
        super().__init__(f"{key}={got}, but must be {need}{tail}")

    def at(self, place: str) -> BadValue:
        """The same mistake, its key prefixed by the place of the component: `at("partition")`."""
        key = f"{place}.{self.key}" if self.key else place
        return BadValue(key, got=self.got, need=self.need, hint=self.hint)

    def __reduce__(self) -> tuple[Any, ...]:  # pickle passes no keyword-only arguments
        return _rebuild_bad_value, (self.key, self.got, self.need, self.hint)


def _rebuild_bad_value(key: str, got: object, need: str, hint: str) -> BadValue:
    return BadValue(key, got=got, need=need, hint=hint)


class DataMissing(BadConfig):
    """Files of a data set are not where the config says."""


class NonFinite(RaylflError):
    """A loss, an update or the server's parameters stopped being finite."""


class ClientFailed(RaylflError):
    """A client's local work raised; names client, round and the original error."""
