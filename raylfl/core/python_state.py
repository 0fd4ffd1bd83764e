"""The Python attributes of a module before and after a step, whose change a graph of the step would not repeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

TORCH = frozenset(vars(nn.Module()))  # attributes that torch itself keeps in a module
PARTS = 1000  # entries of a container that are compared
NESTED = 3  # levels of containers that are compared


def python_state(module: nn.Module) -> dict[str, Any]:
    """Path -> a fingerprint of the attribute, for all attributes of a module and its submodules, and their modes.

    Numbers, strings and containers of them count by value, tensors by identity and version, other objects by identity.
    Trained parameters and buffers are left out, because a step may change their values.
    """
    found: dict[str, Any] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in TORCH or name == "training":
                found[f"{path}.{name}".lstrip(".")] = _fingerprint(value, NESTED)
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The path of an attribute that differs between two results of `python_state`; None if there is none."""
    names = [*before, *(name for name in after if name not in before)]
    return next((name for name in names if before.get(name) != after.get(name)), None)


def _fingerprint(value: Any, levels: int) -> Any:
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return type(value), repr(value)
    if levels and isinstance(value, Mapping):
        return len(value), [(repr(k), _fingerprint(v, levels - 1)) for k, v in list(value.items())[:PARTS]]
    if levels and isinstance(value, (list, tuple, set, frozenset)):
        return id(value), len(value), [_fingerprint(v, levels - 1) for v in list(value)[:PARTS]]
    return id(value)
