"""Training steps and evaluations of a module, translated to a memory order with the samples of a batch innermost."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import is_
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from raylfl.replay.contents import Refused, kind_of
from raylfl.replay.innermost.step import Innermost
from raylfl.replay.innermost.translation import Unfit
from raylfl.replay.proof import Diverged, ProofSchedule, describe, far, is_within
from raylfl.replay.recorded.memory import Arena
from raylfl.replay.recorded.tape import record_step

PLAIN = (nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.Flatten)  # layers that compute the same in evaluations


class InnermostSteps:
    """The translated training steps of a module, which have the samples of a batch innermost in memory.

    There is one for each kind of batch (shapes and dtypes of inputs and labels) and mode (training or evaluation).
    """

    def __init__(self, module: Any, cohort: bool = False):
        """Translated steps of this module, each for one client or for several clients at once (`cohort`)."""
        self.module, self.cohort = module, cohort
        self.parameters = list(module.parameters())
        self.possible = _possible(module, cohort)
        self.first: Innermost | None = None  # the first step found
        self.network: nn.Sequential | None = None  # the part of the module whose cross-entropy is that step
        self.schedule = ProofSchedule()  # of comparisons in evaluations
        self._steps: dict[Any, Innermost | None] = {}
        self._arena = Arena()

    def of(self, content: Any, aside: Callable[[], AbstractContextManager[object]] = nullcontext) -> Innermost | None:
        """The translated step for a batch with this content in the module's current mode; None if there is none.

        content: the batch of a single client, also for a cohort. aside: makes the context of the probe step that is
        recorded for each new kind of batch.
        """
        if not self.possible or not takes(content):
            return None
        try:
            key = kind_of(content), self.module.training
        except Refused:
            return None
        if key not in self._steps:
            content = tuple(part.clone() for part in content)  # the probe step may change its batch in place
            with aside():
                step = self._steps[key] = self._find(content, self._loss)
                if self.first is None and step is not None:
                    self.first, self.network = step, self._network(content, step)
        return self._steps[key]

    def _find(self, content: Sequence[Tensor], loss: Callable[[Any], Tensor]) -> Innermost | None:
        recording = record_step(self.module, self.parameters, content, loss)
        try:
            return None if recording is None else Innermost(recording, self.parameters, self.cohort, self._arena)
        except Unfit:
            return None

    def _loss(self, content: Any) -> Tensor:
        output = self.module.training_step(content, 0)
        loss: Tensor = output["loss"] if isinstance(output, dict) else output
        return loss.reshape(())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context in which the module's network is evaluated by translated calls.

        The network is a submodule nn.Sequential of plain layers, some of them convolutions, whose mean cross-entropy is
        the module's training step. Their outputs are compared with those of the network's own forward pass at first
        and at each use whose number is a power of two; Diverged is raised if they differ. The own forward pass is used
        if the module has no such network, if gradients are enabled, if inputs have another shape or dtype, with other
        weights or layers (a copy of the network, `functional_call`), and under hooks, a changed autocast, `vmap` and
        dispatch modes.
        """
        step, network = self.first, self.network
        if step is None or network is None or not step.convolutions:
            yield
            return

        parts, autocast = _parts(network), torch.is_autocast_enabled("cpu")

        def forward(called: nn.Sequential, x: Tensor) -> Tensor:
            now = _parts(called)
            own: Callable[[], Tensor] = partial(nn.Sequential.forward, called, x)
            same = len(now) == len(parts) and all(map(is_, now, parts)) and not _is_intercepted(called)
            same = same and torch.is_autocast_enabled("cpu") == autocast and self.network is network
            if not same or torch.is_grad_enabled() or not step.fits(x) or x.dtype != self.parameters[0].dtype:
                return own()
            output = step.outputs(x, self.parameters)
            return self._proved(x, output, own()) if self.schedule.due(x.shape, 0) else output

        network.forward = MethodType(forward, network)  # type: ignore[method-assign] # a copy gets a method of its own
        try:
            yield
        finally:
            del network.forward

    def _proved(self, x: Tensor, output: Tensor, expected: Tensor) -> Tensor:
        """`output`, of inputs x, if it equals the network's `expected`; otherwise that, and no more translated calls.

        Raises Diverged if translated calls have been used before.
        """
        if is_within(expected, output, torch.finfo(output.dtype).eps, 0.0):
            self.schedule.proved(x.shape, 0)
            return output
        name, apart = type(self.module).__name__, describe(far(expected, output))
        text = f"{name} has other outputs in batch-last layout in evaluations: they differ by {apart}"
        if self.schedule.comparisons > 1:
            raise Diverged(text, "runtime.layout=contiguous")
        warnings.warn(f"{text}; the network itself computes them", stacklevel=2)
        self.network = None
        return expected

    def _network(self, content: Sequence[Tensor], step: Innermost) -> nn.Sequential | None:
        """The part of the module whose mean cross-entropy has the same calls as this step; None if there is none."""
        for part in self.module.modules():
            if type(part) is nn.Sequential and all(type(layer) in PLAIN for layer in part):
                translated = self._find(content, partial(_cross_entropy, part))
                if translated is not None and translated.text == step.text:
                    return part
        return None


def _parts(network: nn.Module) -> list[object]:
    """The network, its layers and its parameters."""
    return [*network.modules(), *network.parameters()]


def _is_intercepted(network: nn.Sequential) -> bool:
    """Whether layers of a network have hooks, or a function transform or dispatch mode intercepts operator calls."""
    hooks = any(layer._forward_hooks or layer._forward_pre_hooks for layer in network)
    transform = torch._C._functorch.peek_interpreter_stack()
    return hooks or transform is not None or _get_current_dispatch_mode() is not None


def _cross_entropy(network: nn.Sequential, content: Sequence[Tensor]) -> Tensor:
    x, y = content
    return F.cross_entropy(network(x), y).reshape(())


def takes(content: Any, ndim: int = 1) -> bool:
    """Whether the content of a batch is (inputs, labels), with int64 labels of `ndim` dimensions."""
    if not (isinstance(content, (tuple, list)) and len(content) == 2 and isinstance(content[1], Tensor)):
        return False
    return content[1].dtype == torch.int64 and content[1].ndim == ndim


def _possible(module: nn.Module, cohort: bool) -> bool:
    """Whether a module's step may have a translation; only a recorded step shows whether it has one.

    The parameters must be weights and biases of linear layers (for a single client also convolutions), all trained. The
    module must have no buffers, dropout or hooks. cohort: whether the translation is for several clients at once.
    """
    layers = (nn.Linear,) if cohort else (nn.Linear, nn.Conv2d)
    for part in module.modules():
        held = [p for p in part._parameters.values() if p is not None]
        hooks = part._forward_hooks or part._forward_pre_hooks or part._backward_hooks
        if part._buffers or hooks or (isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0):
            return False
        if held and (type(part) not in layers or len(held) != 2):
            return False
        if any(not p.requires_grad or p._backward_hooks for p in held):
            return False
    return next(module.parameters(), None) is not None
