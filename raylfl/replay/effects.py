"""What a step may change: tensors, random generators, and the Python state of its module; and its repetition."""

from __future__ import annotations

import io
import pickle
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raylfl.replay.contents import leaves_of
from raylfl.replay.proof import INTEGERS, Outcome, same_bits

LARGEST = 10_000  # entries; a larger array is compared by its identity
BY_IDENTITY = (type, FunctionType, ModuleType)


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """The Python state of a module as path -> fingerprint; two fingerprints are equal if nothing has changed.

    The fingerprint of an attribute is its pickle, in which tensors, parts of the module, functions and classes stand
    for themselves. A tensor counts as changed if it was replaced or has other bits; parameters and buffers may be
    written to, and parts may change their training mode. An iterator is never equal to itself, as it cannot be read.
    """
    fingerprints: dict[str, Any] = {}
    held = {id(value) for value in (*module.parameters(), *module.buffers(), *module.modules())}
    for path, part in module.named_modules():
        start = f"{path}." if path else ""
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                fingerprints |= {start + key: (id(v), getattr(v, "requires_grad", None)) for key, v in value.items()}
            elif name != "training":
                fingerprints[start + name] = fingerprint(value, held)
    return fingerprints


def fingerprint(value: Any, held: set[int]) -> Any:
    """A value that is equal for an unchanged object; held: ids of tensors that may be written to, and of modules."""
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
            return id(value), None if id(value) in self.held else checksum(value)
        large = isinstance(value, np.ndarray) and value.size > LARGEST
        fixed = id(value) in self.held or isinstance(value, BY_IDENTITY) or type(value).__module__.startswith("raylfl.")
        metric = isinstance(value, nn.Module) and resettable(value)  # begins anew for each client
        return id(value) if large or fixed or metric else None

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


def resettable(part: Any) -> bool:
    """Whether a part of a module has the interface of torchmetrics: `update`, `compute` and `reset`."""
    return all(hasattr(part, name) for name in ("update", "compute", "reset"))


def checksum(tensor: Tensor) -> int:
    """The sum of the bits of a tensor's entries, read as integers; 0 for one whose bits cannot be read.

    Unlike torch's count of writes, it shows what a step has written by `.data`. Of a tensor that is sharded over
    processes, this process's shard counts.
    """
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not storage_of(part):
        return 0
    flat = part.detach().resolve_conj().resolve_neg().reshape(-1)
    return int(flat.view(INTEGERS.get(part.itemsize, torch.int64)).sum(dtype=torch.int64))


def storage_of(tensor: Tensor) -> int:
    """The address of a tensor's memory; 0 for one without: sparse, of a transform such as vmap, or freed by FSDP."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def first_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """The first path whose fingerprint differs; None if all are equal."""
    missing = object()
    return next((p for p in {**first, **second} if first.get(p, missing) != second.get(p, missing)), None)


def generator_states() -> tuple[Tensor, Any, Any, list[Tensor]]:
    """The states of the global generators: torch's on the CPU, numpy, random, torch's on each GPU if CUDA is in use."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), np.random.get_state(), random.getstate(), on_gpus


def set_generators(of_torch: Tensor, of_numpy: Any, of_random: Any, on_gpus: list[Tensor]) -> None:
    """Sets the states that `generator_states` has returned."""
    torch.set_rng_state(of_torch)
    if on_gpus:
        torch.cuda.set_rng_state_all(on_gpus)
    np.random.set_state(of_numpy)
    random.setstate(of_random)


class StepState:
    """What a step may change, as it is now; the attributes of the module are part of it for steps with `effect`.

    tensors: copies of the module's parameters and buffers, and of the tensors of a batch, by name. generators: as in
    `generator_states`.
    """

    def __init__(self, module: nn.Module, live: Mapping[str, Tensor], attributes: Mapping[str, Any] | None = None):
        """The state of this module and of the tensors `live`."""
        self.module, self.live, self.attributes = module, live, attributes or {}
        self.tensors = {name: tensor.detach().clone() for name, tensor in live.items()}
        self.modes = [(part, part.training) for part in module.modules()]
        self.generators = generator_states()

    @staticmethod
    def of(module: nn.Module, content: Any = ()) -> StepState:
        """The state before a step on this content of a batch."""
        batch = {f"batch[{k}]": leaf for k, leaf in enumerate(leaves_of(content))}
        live = {**dict(module.named_parameters()), **dict(module.named_buffers()), **batch}
        return StepState(module, live, attributes_of(module))

    def restore(self) -> None:
        """Sets what a step may change to this state, except for attributes."""
        for name, tensor in self.live.items():
            tensor.detach().copy_(self.tensors[name])
        for part, training in self.modes:
            part.training = training
        set_generators(*self.generators)

    @contextmanager
    def again(self) -> Iterator[None]:
        """A context that begins with this state, and ends with the state in front of it."""
        current = StepState(self.module, self.live)
        self.restore()
        try:
            yield
        finally:
            current.restore()

    def outcome(self, loss: Tensor, row: Tensor, logged: Iterable[tuple[str, Tensor]]) -> Outcome:
        """The outcome of a step from this state that has just ended. logged: (name, tensor) of each `self.log`."""
        now = StepState(self.module, self.live)
        modes = torch.tensor([training for _, training in now.modes])
        others = {"random numbers": now.generators[0], "training modes": modes}
        return Outcome(loss, row, list(logged), now.tensors | others)

    def effect(self) -> str | None:
        """What a step from this state has done besides its results; None if nothing.

        The end of a sentence that begins with `training_step`.
        """
        changed = first_difference(self.attributes, attributes_of(self.module))
        if changed is not None:
            return f"changes the module's attribute `{changed}`"
        if pickle.dumps(self.generators[1:3]) != pickle.dumps(generator_states()[1:3]):
            return "draws random numbers from Python or numpy"
        now = self.module.named_parameters()
        written = next((name for name, p in now if not same_bits(self.tensors[name], p)), None)
        return None if written is None else f"changes the parameter `{written}` in place"
