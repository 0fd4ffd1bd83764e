"""Restores a module's Python attributes before each client, so that clients do not affect each other.

Each task sets parameters and buffers. If nothing else were restored, counters, lists and states of metric objects
would remain in the module, and the result of a client would depend on the clients that its worker has trained before.
"""

import copyreg
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raylfl.core.flat import OF_TORCH
from raylfl.errors import is_own
from raylfl.replay.effects import checksum, resettable, storage_of

SET_BY_TASKS = ("_parameters", "_buffers")
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
LARGEST = 100_000  # entries; a larger container or array is not restored


class Attributes:
    """A snapshot of the attributes of a module and its submodules, and of all objects in them.

    Lists, dicts, sets, deques, numpy arrays and objects of the user's classes are restored in place, at any depth. So
    are frozen parameters, and tensors in attributes: their first entries are those of a module that is made again, as
    copies of all of them could double the memory.
    """

    def __init__(
        self,
        module: nn.Module,
        also: Sequence[Callable[[], object]] = (),
        make: Callable[[], nn.Module] | None = None,
    ):
        """A snapshot of this module.

        also: functions that `restore` calls as well. make: makes the module again; None: tensors are not restored.
        """
        self._make = make
        self._first: dict[int, Tensor] = {}  # the first entries of changed tensors, by their number in `_tensors`
        self._metrics: list[Any] = [part for part in module.modules() if resettable(part)]
        self._parts: list[tuple[dict[str, Any], dict[str, Any], int]] = []  # (live, snapshot, live number of names)
        self._undo = list(also)
        self._containers: list[tuple[Any, Any, Any]] = []  # (live, snapshot, built-in class)
        self._tensors: list[tuple[str, Tensor]] = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
        self.generators: list[str] = []  # names of random generators, whose state is not restored
        waiting = self._store_parts(module)
        trained = (p for p in module.parameters() if p.requires_grad)
        set_by_tasks = set(map(storage_of, (*trained, *module.buffers())))
        seen = set(map(id, module.modules()))
        while waiting:
            name, value = waiting.pop()
            if isinstance(value, Tensor):  # also one that tasks set: `make` gives the same list for any memory
                self._tensors.append((name, value))
                continue
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, GENERATORS):
                self.generators.append(name)
            elif isinstance(value, nn.Module):  # that is no part of the module, such as a teacher in a list
                self._metrics += [part for part in value.modules() if resettable(part)]
                tensors = [*value.named_parameters(), *value.named_buffers()]
                self._tensors += [(f"{name}.{inner}", tensor) for inner, tensor in tensors]
                waiting += [(f"{name}.{inner}", entry) for inner, entry in self._store_parts(value)]
                seen |= set(map(id, value.modules()))
            else:
                waiting += [(name, entry) for entry in self._store(value)]
        restored = {k: t for k, (_, t) in enumerate(self._tensors) if storage_of(t) not in set_by_tasks}
        self._sums = {k: checksum(tensor) for k, tensor in restored.items()}

    def _store_parts(self, module: nn.Module) -> list[tuple[str, Any]]:
        """Stores the attributes of a module and its parts, other than metric objects; returns (path, attribute)."""
        inside = {id(part) for metric in self._metrics for part in metric.modules()}
        named: list[tuple[str, Any]] = []
        for path, part in module.named_modules():
            if id(part) not in inside:
                values = vars(part)
                attributes = {name: value for name, value in values.items() if name not in OF_TORCH}
                self._parts.append((values, attributes, len(attributes) + len(OF_TORCH)))
                named += [(f"{path}.{name}".lstrip("."), value) for name, value in attributes.items()]
                hooks = [values[name] for name in OF_TORCH - set(SET_BY_TASKS) if isinstance(values.get(name), dict)]
                self._containers += [_entry(table) for table in hooks]
        return named

    def _store(self, value: Any) -> list[Any]:
        """Stores what `restore` puts back of an object; returns the objects to which it refers."""
        inner: list[Any] = []
        if isinstance(value, tuple):
            inner += value
        elif isinstance(value, np.ndarray):
            if value.size <= LARGEST and value.flags.writeable:
                self._undo.append(partial(np.copyto, value, value.copy()))
        elif isinstance(value, (dict, list, set, deque)) and len(value) <= LARGEST:
            inner += value.values() if isinstance(value, dict) else value
            self._containers.append(_entry(value))
        if _is_users(type(value)):
            if hasattr(value, "__dict__"):
                inner += vars(value).values()
                self._containers.append(_entry(vars(value)))
            slots: list[str] = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
            held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
            inner += held.values()
            self._undo += [partial(object.__setattr__, value, name, entry) for name, entry in held.items()]
        return inner

    def restore(self) -> None:
        """Restores all attributes, deletes new ones, and resets metric objects."""
        for now, before, count in self._parts:
            now.update(before)
            if len(now) > count:  # all names of the snapshot exist now: more names are new attributes
                for name in now.keys() - before.keys() - OF_TORCH:
                    del now[name]
        for container, entries, kind in self._containers:
            if entries or container:  # most are tables of hooks, and empty
                kind.clear(container)
                (kind.extend if kind in (list, deque) else kind.update)(container, entries)
        for undo in self._undo:
            undo()
        for metric in self._metrics:
            metric.reset()
        if self._make is not None and not self._first.keys() >= (changed := self._changed()):
            made = Attributes(self._make())._tensors
            self._first |= {k: made[k][1].detach() for k in changed}
        for k, first in self._first.items():
            self._tensors[k][1].detach().copy_(first)

    def _changed(self) -> set[int]:
        return {k for k, total in self._sums.items() if checksum(self._tensors[k][1]) != total}

    def changed_tensors(self) -> list[str]:
        """Names of frozen parameters and tensors in attributes that were changed in place since the snapshot."""
        return list(dict.fromkeys(self._tensors[k][0] for k in sorted(self._first.keys() | self._changed())))


def _entry(container: Any) -> tuple[Any, Any, Any]:
    """(a container, its entries, its built-in class, by whose methods `restore` puts the entries back)."""
    kind = next(kind for kind in (OrderedDict, dict, list, set, deque) if isinstance(container, kind))
    return container, dict(container) if isinstance(container, dict) else list(container), kind


def _is_users(cls: type) -> bool:
    """Whether a class of objects with attributes is the user's, not one of Python, a library or raylfl."""
    if cls is SimpleNamespace:
        return True
    return cls.__module__ not in sys.builtin_module_names and is_own(
        str(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")
    )
