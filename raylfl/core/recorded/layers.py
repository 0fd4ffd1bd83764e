"""Detection of chains of layers: modules whose recorded step is the mean cross-entropy of a plain chain.

Small convolutions and whole cohorts of dense networks have faster forms than a list of single calls. They apply to any
module with such a step, whatever its class: the recorded forward pass is read as layers, and the recording of these
layers must be the same list, backward pass included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylfl.core.recorded.calls import Call, Recording, Slot, full_name, same_bits
from raylfl.core.recorded.guards import Refused
from raylfl.core.recorded.plan import Plan, reduced
from raylfl.core.recorded.steps import kind_of, leaves_of
from raylfl.core.recorded.tape import record


class Chains:
    """The chain of layers of a module's training step, determined for each kind of batch."""

    def __init__(self, module: Any):
        self.module = module
        self.possible = _possible(module)
        self.layers: list[nn.Module] = []  # the layers of the first chain found
        self.network: nn.Sequential | None = None  # the part of the module made of these layers, if any
        self._found: dict[Any, list[nn.Module] | None] = {}

    def of(
        self, content: Any, aside: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> list[nn.Module] | None:
        """The layers for this kind of batch (inputs, labels) in the module's current mode; None if they form no chain.

        aside: a context for the trial step with a new kind of batch.
        """
        if not self.possible or not takes(content):
            return None
        try:
            key = kind_of(content), self.module.training
        except Refused:
            return None
        if key not in self._found:
            with aside():
                self._found[key] = self._find(content)
        return self._found[key]

    def _find(self, content: Sequence[Tensor]) -> list[nn.Module] | None:
        parameters = list(self.module.parameters())
        theirs = recorded(self.module, parameters, content, self._loss)
        layers = None if theirs is None else _read(theirs, reduced(theirs), self.module)
        if theirs is None or not layers:
            return None
        once = [id(p) for layer in layers for p in layer.parameters()]
        if sorted(once) != sorted(map(id, parameters)):  # a parameter is unused, or used twice
            return None
        chain = nn.Sequential(*layers)
        ours = recorded(chain, parameters, content, lambda batch: F.cross_entropy(chain(batch[0]), batch[1]))
        if ours is None or not _same_plan(reduced(ours), reduced(theirs)):
            return None
        network = next((m for m in self.module.modules() if _is_chain(m, layers)), None)
        layers = _pools_first(layers)
        if not self.layers:
            self.layers, self.network = layers, network
        return layers

    def order(self, layers: Sequence[nn.Module]) -> list[int]:
        """The positions of the layers' parameters among the module's parameters."""
        places = {id(p): k for k, p in enumerate(self.module.parameters())}
        return [places[id(p)] for layer in layers for p in layer.parameters()]

    def _loss(self, content: Any) -> Tensor:
        output = self.module.training_step(content, 0)
        loss: Tensor = output["loss"] if isinstance(output, dict) else output
        return loss.reshape(())


def takes(content: Any, ndim: int = 1) -> bool:
    """Whether a batch is (inputs, labels), with int64 labels of `ndim` dimensions."""
    if not (isinstance(content, (tuple, list)) and len(content) == 2 and isinstance(content[1], Tensor)):
        return False
    return content[1].dtype == torch.int64 and content[1].ndim == ndim


def _possible(module: nn.Module) -> bool:
    """Whether all parameters are trained weights and biases of linear layers and convolutions, without hooks."""
    for layer in module.modules():
        held = [p for p in layer._parameters.values() if p is not None]
        if layer._buffers or layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
            return False
        if held and (type(layer) not in (nn.Linear, nn.Conv2d) or len(held) != 2):
            return False
        if isinstance(layer, nn.Conv2d) and (isinstance(layer.padding, str) or layer.padding_mode != "zeros"):
            return False
        if any(not p.requires_grad or p._backward_hooks for p in held):
            return False
    return next(module.parameters(), None) is not None


def recorded(
    module: nn.Module, parameters: Sequence[nn.Parameter], content: Any, loss: Callable[[Any], Tensor]
) -> Recording | None:
    """The recording of one step on a batch; None if the step fails or cannot be recorded."""

    def gradient(value: Tensor) -> Sequence[Tensor | None]:
        return torch.autograd.grad(value, parameters, allow_unused=True)

    try:
        found = record(module, leaves_of(content), lambda: loss(content), gradient)[2]
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError, IndexError, Refused):
        return None  # the step itself will raise the error
    return found if isinstance(found, Recording) else None


def _read(recording: Recording, plan: Plan, module: nn.Module) -> list[nn.Module] | None:
    """The forward calls as layers, from the first leaf to the loss; None if they form no chain."""
    owners = {layer.weight.data_ptr(): layer for layer in module.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))}
    layers: list[nn.Module] = []
    at, shape = 0, recording.geometry[0].shape
    for call in plan.calls:
        given = call.slots()
        if full_name(call.op) == "aten::_log_softmax":
            return layers if call.args[:1] == (Slot(at),) else None
        weights = [plan.constants[k].data_ptr() for k in given if k in plan.constants]
        owner = next((owners[pointer] for pointer in weights if pointer in owners), None)
        result = call.results()
        flat = bool(result) and recording.geometry[result[0]].shape == (shape[0], math.prod(shape[1:]))
        layer = _layer(call, at, flat, owner)
        if layer is None or not result:
            return None
        layers.append(layer)
        at = result[0]
        shape = recording.geometry[at].shape
    return None


def _pools_first(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The layers with each max-pool before the ReLU that it follows, which keeps all bits (`pools.py`)."""
    out: list[nn.Module] = []
    for layer in layers:
        late = isinstance(layer, nn.MaxPool2d) and bool(out) and isinstance(out[-1], nn.ReLU)
        out.insert(len(out) - late, layer)
    return out


def _layer(call: Call, at: int, flat: bool, owner: nn.Module | None) -> nn.Module | None:
    """The layer that makes this call on value `at`; None for any other call.

    flat: whether the result has one row per sample. The later comparison of recordings checks the arguments.
    """
    name, args = call.op._schema.name.removeprefix("aten::"), call.args
    position = 1 if name == "addmm" else 0
    if len(args) <= position or args[position] != Slot(at):
        return None
    if name in ("addmm", "convolution"):
        return owner if isinstance(owner, nn.Linear if name == "addmm" else nn.Conv2d) else None
    if name in ("relu", "relu_"):
        return nn.ReLU(inplace=name == "relu_")
    if name == "max_pool2d_with_indices":
        window, stride = args[1], args[2] if len(args) > 2 else []
        return nn.MaxPool2d(tuple(window), tuple(stride) or None)  # without padding and dilation
    return nn.Flatten() if name == "view" and flat else None


def _same_plan(ours: Plan, theirs: Plan) -> bool:
    """Whether two plans have the same calls and constants, up to the numbering of values."""
    same = {k: k for k in range(ours.leaves)}

    def agree(a: Any, b: Any) -> bool:
        if isinstance(a, Slot) and isinstance(b, Slot):
            if a.number in ours.constants and b.number in theirs.constants:
                return _same_constant(ours.constants[a.number], theirs.constants[b.number])
            return same.get(a.number) == b.number
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and not isinstance(a, Slot):
            return len(a) == len(b) and all(map(agree, a, b))
        return type(a) is type(b) and repr(a) == repr(b)

    if len(ours.calls) != len(theirs.calls):
        return False
    for a, b in zip(ours.calls, theirs.calls, strict=True):
        if a.op is not b.op or a.kwargs.keys() != b.kwargs.keys() or not agree(_args(a, ours), _args(b, theirs)):
            return False
        if not all(agree(value, b.kwargs[name]) for name, value in a.kwargs.items()):
            return False
        if len(a.results()) != len(b.results()):
            return False
        same.update(zip(a.results(), b.results(), strict=True))
    ends = zip([ours.loss, *ours.gradients], [theirs.loss, *theirs.gradients], strict=True)
    return all(b is not None and a is not None and same.get(a) == b for a, b in ends)


def _args(call: Call, plan: Plan) -> list[Any]:
    """The arguments of a call in canonical form: a size of -1 and a stride equal to the window are written out."""
    name, args = call.op._schema.name.removeprefix("aten::"), list(call.args)
    if name == "view":
        args[1] = list(plan.geometry[call.results()[0]].shape)
    if name.startswith("max_pool2d_with_indices"):
        window = 2 if name.endswith("backward") else 1
        args += [[], [0, 0], [1, 1], False][len(args) - window - 1 :]
        args[window + 1] = args[window + 1] or args[window]
    return args


def _same_constant(a: Tensor, b: Tensor) -> bool:
    there = (a.data_ptr(), a.shape, a.stride(), a.dtype) == (b.data_ptr(), b.shape, b.stride(), b.dtype)
    return there or (a.numel() == b.numel() == 1 and same_bits(a, b))  # the gradient of the loss itself


def _is_chain(module: nn.Module, layers: Sequence[nn.Module]) -> bool:
    """Whether a module is the sequence of these layers."""
    if type(module) is not nn.Sequential or len(module) != len(layers):
        return False
    return all(a is b or (type(a) is type(b) and not list(b.parameters())) for a, b in zip(module, layers, strict=True))
