"""What a step changes besides its results: Python attributes of its module, and the random generators of the host."""

from __future__ import annotations

import io
import pickle
import random
from collections import OrderedDict
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raylfl.replay.proof import same_bits

LARGEST = 10_000  # entries; a larger array is compared by its identity
BY_IDENTITY = (nn.Module, type, FunctionType, ModuleType)


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """The Python state of a module as path -> fingerprint; two fingerprints are equal if nothing has changed.

    The fingerprint of an attribute is its pickle, in which tensors, modules, functions and classes stand for
    themselves. A tensor counts as changed if it was replaced or written to; parameters and buffers may be written to,
    and parts may change their training mode. An iterator is never equal to itself, because it cannot be read.
    """
    fingerprints: dict[str, Any] = {}
    held = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                fingerprints |= {
                    _join_path(path, key): (id(v), getattr(v, "requires_grad", None)) for key, v in value.items()
                }
            elif name != "training":
                fingerprints[_join_path(path, name)] = fingerprint(value, held)
    return fingerprints


def fingerprint(value: Any, held: set[int]) -> Any:
    """A value that is equal for an unchanged object; held: ids of tensors that may be written to."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (dict, OrderedDict, list, set, tuple) and not value:
        return type(value)
    target = io.BytesIO()
    try:
        _Pickler(target, held).dump(value)
    except Exception:  # an iterator, or objects nested too deeply
        return object()
    return target.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles objects; an object whose pickles cannot be compared is written as its identity."""

    def __init__(self, target: io.BytesIO, held: set[int]):
        super().__init__(target, protocol=5)
        self.held = held

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            plain = id(value) in self.held or value.is_inference()
            return id(value), None if plain else (value._version, _address(value))
        large = isinstance(value, np.ndarray) and value.size > LARGEST
        by_identity = isinstance(value, BY_IDENTITY) or type(value).__module__.startswith("raylfl.")
        return id(value) if large or by_identity else None

    def reducer_override(self, value: Any) -> Any:
        if hasattr(value, "__next__"):
            raise TypeError("an iterator")
        if isinstance(value, torch.Generator):
            return bytes, (value.get_state().numpy().tobytes(),)
        try:
            return value.__reduce_ex__(5)
        except Exception:  # a lock, a file, a class of its own rules
            state = getattr(value, "__dict__", None)
            return (int, (id(value),)) if not state else (tuple, ([id(value)],), None, iter(list(state.items())))


def _address(tensor: Tensor) -> int | None:
    """The address of a tensor's entries, which an assignment to `.data` changes; None for a tensor without one."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # sparse, or of a transform such as vmap
        return None


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def first_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """The first path whose fingerprint differs; None if all are equal."""
    missing = object()
    return next((p for p in {**first, **second} if first.get(p, missing) != second.get(p, missing)), None)


def host_randomness() -> tuple[Any, ...]:
    """The states of Python's and numpy's global random generators, in a form that can be compared."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


class HostState(NamedTuple):
    """What a step may change besides tensors: the attributes of its module, and the generators of Python and numpy."""

    attributes: Mapping[str, Any]
    generators: tuple[Any, ...]

    @staticmethod
    def of(module: nn.Module) -> HostState:
        return HostState(attributes_of(module), host_randomness())

    def effect(self, module: nn.Module, parameters: Mapping[str, Tensor]) -> str | None:
        """What a step from this state has done besides its results; None if nothing.

        The end of a sentence that begins with `training_step`. parameters: copies of parameters before the step.
        """
        changed = first_difference(self.attributes, attributes_of(module))
        if changed is not None:
            return f"changes the module's attribute `{changed}`"
        if self.generators != host_randomness():
            return "draws random numbers from Python or numpy"
        now = ((name, p) for name, p in module.named_parameters() if name in parameters)
        written = next((name for name, p in now if not same_bits(parameters[name], p)), None)
        return None if written is None else f"changes the parameter `{written}` in place"
