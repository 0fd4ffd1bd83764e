"""Restores a module's Python attributes before each client, so that clients do not affect each other.

Each task sets parameters and buffers. If nothing else were restored, counters, lists and states of metric objects
would remain in the module, and the result of a client would depend on the clients that its worker has trained before.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CONTAINERS = (list, dict, set, deque)
TORCH = frozenset(vars(nn.Module()))  # attributes that torch itself keeps in a module


class Attributes:
    """A snapshot of the attributes of a module and its submodules, with copies of lists, dicts, sets and deques."""

    def __init__(self, module: nn.Module):
        self._metrics: list[Any] = [part for part in module.modules() if resettable(part)]
        inside = {id(part) for metric in self._metrics for part in metric.modules()}
        self._parts: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []  # (live, plain, containers)
        self._named: list[tuple[str, Any]] = []
        for name, part in module.named_modules():
            if id(part) not in inside:
                own = {key: value for key, value in vars(part).items() if key not in TORCH}
                containers = {key: copy.copy(value) for key, value in own.items() if type(value) in CONTAINERS}
                plain = {key: value for key, value in own.items() if key not in containers}
                self._parts.append((vars(part), plain, containers))
                self._named += [(f"{name}.{key}".lstrip("."), value) for key, value in own.items()]
        frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
        tensors = [(name, value) for name, value in self._named if isinstance(value, Tensor)]
        self._versions = {name: (value, value._version) for name, value in frozen + tensors}

    @property
    def generators(self) -> list[str]:
        """Names of random generators among the attributes; their state is not restored."""
        kinds = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
        return [name for name, value in self._named if isinstance(value, kinds)]

    def restore(self) -> None:
        """Restores all attributes, deletes new ones, and resets metric objects."""
        for now, plain, containers in self._parts:
            now.update(plain)
            for name, value in containers.items():
                now[name] = copy.copy(value)
            # all names of the snapshot exist now: more names are new attributes
            if len(now) > len(plain) + len(containers) + len(TORCH):
                for name in now.keys() - plain.keys() - containers.keys() - TORCH:
                    del now[name]
        for metric in self._metrics:
            metric.reset()

    def changed_tensors(self) -> list[str]:
        """Names of tensors that were changed in place since the snapshot, which `restore` does not undo.

        Frozen parameters and tensor attributes are checked. Trained parameters and buffers are not, because every task
        sets them.
        """
        return [name for name, (tensor, version) in self._versions.items() if tensor._version != version]


def resettable(part: Any) -> bool:
    """Whether a part of a module has the interface of torchmetrics: `update`, `compute` and `reset`."""
    return all(hasattr(part, name) for name in ("update", "compute", "reset"))
