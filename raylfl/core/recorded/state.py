"""Snapshots of the Python state of a module: its attributes, and the variables outside it that its step may read."""

from __future__ import annotations

import logging
import random
from argparse import Namespace
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raylfl.core.recorded.outside import Outside, Variable, functions_of, own, variables

NESTED = 8  # levels of nested attributes that are compared
ENTRIES = 10_000  # largest number of entries that are compared, of one container or array and in all


class State(dict[str, Any]):
    """A snapshot of the Python state of a module, as a dict from path (such as `layer.count`) to value.

    outside: the variables outside the module. tensors: tensor id -> (path, tensor), for the tensors in attributes and
    in these variables. metrics: the prefixes of the paths of metric objects, which are reset before every local work.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outside: Sequence[Variable] = ()
        self.tensors: dict[int, tuple[str, Tensor]] = {}
        self.metrics: tuple[str, ...] = ()

    def without_metrics(self) -> State:
        """The snapshot without the entries whose paths lie in metric objects."""
        kept = State()
        kept.update({path: value for path, value in self.items() if not path.startswith(self.metrics)})
        kept.tensors = {key: held for key, held in self.tensors.items() if not held[0].startswith(self.metrics)}
        kept.outside = self.outside
        return kept


def state_of(module: nn.Module) -> State:
    """A snapshot of a module's state by path; it differs after a step that changes attributes or outside variables.

    It holds the identity of parameters, buffers, other tensors and submodules, the values of numbers and strings, and
    the parts of containers and plain objects. Training mode, which is part of a batch's kind, is left out.
    """
    found = _Parts()
    found.own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        found.classes[type(part)] = None
        if resettable(part):
            found.state.metrics += (f"{path}.",)
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                found.state.update({f"{prefix}{key}": id(held) for key, held in value.items()})
            elif name != "training":
                found.add(f"{prefix}{name}", value)
    for name, parameter in module.named_parameters():
        found.state[f"{name} (requires_grad)"] = parameter.requires_grad
    found.state.outside = variables(found.classes, list(found.functions.values()))
    found.add_outside(found.state.outside)
    return found.state


def outside_of(state: State) -> State:
    """A new snapshot that holds only the variables outside the module, the same ones as in `state`."""
    found = _Parts()
    found.add_outside(state.outside)
    return found.state


def resettable(part: Any) -> bool:
    """Whether a part of a module has the interface of torchmetrics: `update`, `compute` and `reset`."""
    return all(hasattr(part, name) for name in ("update", "compute", "reset"))


_SIMPLE = frozenset({bool, int, float, str, type(None)})
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, np.generic, range)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)  # containers with equal parts count as equal
_EXACT = frozenset({*_CONTAINERS, OrderedDict})
_BY_IDENTITY = (
    type,
    FunctionType,
    MethodType,
    BuiltinFunctionType,
    ModuleType,
    nn.Module,
    logging.Logger,
    logging.Handler,
)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_HOLDERS = (Mapping, SimpleNamespace, Namespace, partial)  # further objects outside the module whose parts are compared


class _Parts:
    """A snapshot in the making; `add` enters a value and its parts under their paths, each object's parts once."""

    def __init__(self) -> None:
        self.state = State()
        self.seen: dict[int, Any] = {}  # kept alive, so that no other object gets the same id
        self.classes: dict[type, None] = {}  # of the module's parts and of the users' objects in them
        self.functions: dict[int, FunctionType] = {}  # functions in attributes, such as hooks
        self.own: set[int] = set()  # ids of the module's parameters and buffers, whose values may change

    def add_outside(self, given: Sequence[Variable]) -> None:
        """Adds variables outside the module; an object of an installed package is entered by its identity only."""
        for path, read in given:
            value = read()
            kept = isinstance(
                value, (*_PLAIN, *_CONTAINERS, *_BY_IDENTITY, *_GENERATORS, *_HOLDERS, Tensor, np.ndarray)
            )
            if kept or hasattr(value, "__next__") or own(type(value).__module__):
                self.add(path, value)
            else:
                self.state[path] = id(value)

    def _call(self, path: str, value: Any, depth: int) -> None:
        """Adds the functions in a callable value, and `__self__` of a bound method if its class is a user's."""
        self.functions.update({id(found): found for found in functions_of(value)})
        holder = getattr(value, "__self__", None)
        if isinstance(value, MethodType) and depth and own(type(holder).__module__):
            self.add(type(path)(f"{path}.__self__"), holder, depth - 1)

    def add(self, path: str, value: Any, depth: int = NESTED) -> None:
        kind = type(value)
        if kind in _SIMPLE or isinstance(value, _PLAIN):
            self.state[path] = (kind.__name__, repr(value))
        elif kind in _EXACT and not value:
            self.state[path] = (kind, 0)
        elif id(value) in self.own:  # listed once more, as in the `_flat_weights` of a recurrent layer
            self.state[path] = id(value)
        elif isinstance(value, Tensor):
            self.state[path] = (id(value), None if value.is_inference() else value._version, _memory(value))
            self.state.tensors.setdefault(id(value), (path, value))
        elif isinstance(value, _BY_IDENTITY):
            self.state[path] = id(value)
            self._call(path, value, depth)
        elif isinstance(value, _GENERATORS):
            self.state[path] = _drawn(value)
        elif hasattr(value, "__next__") or len(self.state) > ENTRIES:
            self.state[path] = object()  # an iterator or too many entries: equal to nothing
        elif isinstance(value, np.ndarray):
            self.state[path] = (id(value), value.shape, value.tobytes() if value.size <= ENTRIES else None)
        else:
            self.state[path] = (kind if isinstance(value, _CONTAINERS) else id(value), _length(value))
            if depth and id(value) not in self.seen:
                self.seen[id(value)] = value
                if kind not in _EXACT:
                    self.classes[kind] = None
                    self._call(path, value, depth)
                for key, part in _entries(value):
                    self.add(type(path)(f"{path}{key}"), part, depth - 1)


def _memory(tensor: Tensor) -> int | None:
    """The address of a tensor's entries, which an assignment to its `data` changes; None for a tensor without one."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # sparse, or of a transform such as vmap
        return None


def _drawn(generator: Any) -> Any:
    """The state of a random generator of torch, numpy or Python."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    return repr(generator.get_state()) if isinstance(generator, np.random.RandomState) else generator.getstate()


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def _entries(value: Any) -> list[tuple[str, Any]]:
    """(path suffix, part) of each part of a container or plain object, at most ENTRIES of a container."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"[{key!r}]", part) for key, part in list(value.items())[:ENTRIES]]
    elif isinstance(value, (list, tuple, deque)):
        parts = [(f"[{k}]", part) for k, part in enumerate(list(value)[:ENTRIES])]
    elif isinstance(value, (set, frozenset)):
        parts = [("{}", repr(sorted(map(repr, value))))]
    elif isinstance(value, partial):
        parts = [(".args", value.args), (".keywords", value.keywords)]
    named = [name for cls in type(value).__mro__ if own(cls.__module__) for name in vars(cls).get("__slots__", ())]
    parts += [(f".{name}", getattr(value, name)) for name in named if hasattr(value, name)]
    return parts + [(f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()]


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first path at which two snapshots by `state_of` differ; None if they are equal."""
    missing = object()
    return next((p for p in {**before, **after} if before.get(p, missing) != after.get(p, missing)), None)


def shown(path: str) -> str:
    """A path of a snapshot as a noun phrase for messages."""
    return f"`{path}`" if isinstance(path, Outside) else f"the module's attribute `{path}`"
