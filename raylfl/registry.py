"""Names to classes: one registry a kind (algorithms, partitions, participation, links, models, data).

A component is a dataclass whose fields are its options; registering it is one line above the class:

    @PARTITIONS.register("dirichlet", paper="Yurochkin 2019")
    @dataclass
    class Dirichlet(Partition): ...

Every module of the package that owns a registry is imported on first look-up, so a new file is enough.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from raylfl.errors import BadValue

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered class: its name in configs, one line on what it is, the paper it is from."""

    name: str
    cls: type[T]
    summary: str
    paper: str


class Registry(Generic[T]):
    """What may stand as `name:` in one group of the config."""

    def __init__(self, kind: str, package: str):
        self.kind, self.package = kind, package
        self._entries: dict[str, Entry[T]] = {}
        self._discovered = False

    def register(self, name: str, paper: str = "") -> Callable[[type[T]], type[T]]:
        """Class decorator; the summary is the first line of the class's docstring."""

        def add(cls: type[T]) -> type[T]:
            if name in self._entries and self._entries[name].cls.__qualname__ != cls.__qualname__:
                raise ValueError(f"two {self.kind} are called {name}")
            summary = (cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else ""
            self._entries[name] = Entry(name, cls, summary.rstrip("."), paper)
            return cls

        return add

    def __iter__(self) -> Iterator[Entry[T]]:
        self._discover()
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._entries

    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def get(self, name: str, key: str = "name") -> Entry[T]:
        """The entry of that name; raises BadValue naming the nearest one."""
        self._discover()
        if name not in self._entries:
            near = difflib.get_close_matches(str(name), self._entries, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"`raylfl list {self.kind}` explains them"
            raise BadValue(key, got=name, need=f"one of {', '.join(self.names())}", hint=hint)
        return self._entries[name]

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
