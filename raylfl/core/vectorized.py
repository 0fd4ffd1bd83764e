"""The vectorised oracle: one call for a whole micro-cohort, by torch.func over `training_step`.

Losses of C clients are one vmapped forward pass at X [C, d]; their sum has X's gradient rows as the clients'
own gradients, since no loss reaches another client's row. On a GPU that is many times faster than C passes; on
a CPU it pays for small models without convolutions only. A module may offer the same losses as a method of its
own, `cohort_losses(parameters, batch)`, which is then called in place of the vmap: a chain of batched matrix
products has neither vmap's overhead nor its missing rules. The two forms differ in the last bits, so which one a
run uses is decided by a rule on the config and the model, never by a timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from raylfl.core.chain import IGNORED
from raylfl.core.cohort_chain import CohortChain
from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch, Oracle, Way, loss_of, private_randomness, seed_everything
from raylfl.core.recorded.layers import Chains, recorded, takes
from raylfl.core.samples import EvenBatches, IndexedBatch, sizes_of
from raylfl.core.step_log import StepLog

LARGEST_ON_CPU = 100_000  # d: beyond it the rows fall out of the caches and one client at a time is faster
LARGEST_SAMPLE = 1000  # numbers that a call of the step makes of a sample, on average; likewise
MOST_FILLED = 2  # times the samples that there are, as which unequal batches may count when they are filled up
DENSE = Way("cohort", "clients of a call together: a chain of dense layers as batched matrix products")
BY_HAND = Way("cohort", "clients of a call together: the model's own cohort_losses")
VMAP = Way("cohort", "clients of a call together: vmap over training_step")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
RECURRENT = (nn.RNNBase,)


def refusal(flat: FlatModule, device: torch.device, setting: str) -> str | None:
    """Why this model is not vectorised under `runtime.vectorize: auto | always | never`; None: it is."""
    if setting == "never":
        return "runtime.vectorize=never"
    if flat.buffers:
        return "its buffers change in place"
    modules = list(flat.module.modules())
    if any(isinstance(m, RECURRENT) for m in modules):
        return "recurrent layers have no vmap rule"
    if setting == "always" or device.type != "cpu":
        return None
    if any(isinstance(m, CONVOLUTIONS) for m in modules):
        return "on a CPU convolutions run faster one client at a time"
    if flat.width > LARGEST_ON_CPU:
        return f"on a CPU more than {LARGEST_ON_CPU} parameters run faster one client at a time"
    return None


def large_samples(flat: FlatModule, loss: Callable[[Any], Tensor], contents: Sequence[Any]) -> str | None:
    """Why a step that makes much of each sample (attention over a sequence) goes one client at a time on a CPU, judged
    by recordings on batches of one and two samples; None where it does not.
    """
    made, calls = [], 0
    for content in contents:
        found = recorded(flat.module, flat.parameters, content, loss)
        if found is None:
            return None
        results = [k for call in found.calls if not call.views for k in call.results()]
        made.append(sum(math.prod(found.geometry[k].shape) for k in results))
        calls = len(results)
    if made[1] - made[0] <= LARGEST_SAMPLE * calls:
        return None
    return f"on a CPU steps that make over {LARGEST_SAMPLE} numbers a call of a sample run faster one client at a time"


class _Step(nn.Module):
    """`training_step` as a forward pass, so that torch.func can call it with other parameters."""

    def __init__(self, module: Any, log: StepLog):
        super().__init__()
        self.module, self.log = module, log

    def forward(self, *batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and what was logged on the way."""
        loss = loss_of(self.module.training_step(batch, 0), self.module)
        return loss, self.log.take()


class VectorizedOracle(Oracle):
    """C forward passes in one vmap, one backward pass for all."""

    def __init__(
        self,
        flat: FlatModule,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        by_hand: bool = True,
        log: StepLog | None = None,
    ):
        """autocast: the precision context of the device; by_hand: False: vmap, whatever the model offers; log: where
        the module's `training_step` logs.
        """
        super().__init__()
        self.flat, self.autocast, self.log = flat, autocast, log or StepLog()
        self.step = _Step(flat.module, self.log)
        self.places = places_of(flat.parameters, self.step)
        offered = getattr(flat.module, "cohort_losses", None)  # looked up once, as it searches the layers
        self.cohort_losses: Any = offered if by_hand else None
        self.forward = self._by_hand if self.cohort_losses else vmap(self._loss, randomness="different")
        plain = by_hand and autocast is nullcontext and flat.params.device.type == "cpu"
        self.chains = Chains(flat.module) if plain else None

    def _loss(self, parameters: list[Tensor], batch: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        named = {name: parameters[k] for name, k in self.places}
        result: tuple[Tensor, dict[str, Tensor]] = functional_call(self.step, named, batch, tie_weights=False)
        return result

    def _by_hand(self, parameters: list[Tensor], batch: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.cohort_losses(dict(zip(self.flat.names, parameters, strict=True)), batch), {}

    @property
    def width(self) -> int:
        return self.flat.width

    def workspace(self, count: int) -> Tensor:
        return self.flat.params.new_empty(count, self.flat.width)

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        """Rows whose batches have one size go together; unequal sizes are filled up, or else make one call a size."""
        sizes = sizes_of(batches)
        if len(set(sizes)) == 1:
            return self._together(x, batches, seeds(0))
        if (content := self._filled_up(batches, sizes)) is not None and (layers := self._dense(content, sizes)):
            return self._through(layers, x, content)
        all_losses, all_rows = x.new_empty(len(batches)), torch.empty_like(x)
        logged: dict[str, Tensor] = {}
        for size in sorted(set(sizes)):
            group = [k for k, s in enumerate(sizes) if s == size]
            losses, g = self._together(x[group], [batches[k] for k in group], seeds(group[0]))
            all_losses[group], all_rows[group] = losses.to(all_losses), g
            for name, values in self.log.take().items():
                rows = logged.setdefault(name, values.new_full((len(batches),), torch.nan))
                rows[group] = values
        self.log.values = logged
        return all_losses, all_rows

    def _together(self, x: Tensor, batches: Sequence[Batch], seed: int) -> tuple[Tensor, Tensor]:
        if batches[0].random:
            seed_everything(seed)
        content = stacked(batches)
        if layers := self._dense(content):
            return self._through(layers, x, content)
        if not batches[0].random:
            seed_everything(seed)
        at = x.detach().requires_grad_()
        with self.autocast():
            losses, self.log.values = self.forward(self.flat.views(at), content)
        (g,) = torch.autograd.grad(losses.sum(), at)
        self.ways[BY_HAND if self.cohort_losses else VMAP] += len(batches)
        return losses.detach(), g

    def _dense(self, content: Sequence[Tensor], sizes: Sequence[int] | None = None) -> list[nn.Module] | None:
        """The module's layers where its step is a chain of dense ones, for batches [C, B, ...] of which so many samples
        count; None where it is not.
        """
        if self.chains is None or not takes(content, ndim=2):
            return None
        x, y = (part[0] for part in content)
        found = [self.chains.of((x[:size], y[:size]), private_randomness) for size in {len(y), *(sizes or ())}]
        layers = found[0]
        return layers if layers and all(found) and CohortChain.possible(layers) else None

    def _filled_up(self, batches: Sequence[Batch], sizes: Sequence[int]) -> tuple[Tensor, ...] | None:
        return filled_up(batches, sizes) if self.chains is not None and self.chains.possible else None

    def _through(self, layers: list[nn.Module], x: Tensor, content: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        assert self.chains is not None
        g, order = torch.empty_like(x), self.chains.order(layers)
        parameters, gradients = ([views[k] for k in order] for views in (self.flat.views(x), self.flat.views(g)))
        self.ways[DENSE] += len(x)
        return CohortChain(layers).losses_and_gradients(content, parameters, gradients), g


def places_of(parameters: Sequence[Tensor], module: nn.Module) -> list[tuple[str, int]]:
    """(name, which of the parameters) of every attribute that holds one, a shared submodule's attributes once.

    torch ties by name: a submodule that has two names would be left with the second name's temporary tensors.
    """
    number = {id(p): k for k, p in enumerate(parameters)}
    held = [(f"{path}.{name}", p) for path, part in module.named_modules() for name, p in part._parameters.items()]
    return [(name, number[id(p)]) for name, p in held if id(p) in number]


def filled_up(batches: Sequence[Batch], sizes: Sequence[int]) -> tuple[Tensor, ...] | None:
    """Batches (x, a class each) of unequal sizes as tensors [C, B, ...]: the shorter ones are filled up with samples of
    their own, whose class is left out. None for batches that are anything else, not of one plain data set, or so
    unequal that it would be more work than a call a size.
    """
    client_state = IndexedBatch.of_one_source(batches)
    if (
        not client_state
        or not client_state[0].source.plain
        or min(sizes) == 0
        or len(sizes) * max(sizes) > MOST_FILLED * sum(sizes)
    ):
        return None
    at = np.empty((len(client_state), max(sizes)), dtype=np.int64)
    for row, b in zip(at, client_state, strict=True):
        row[: b.size], row[b.size :] = b.indices, b.indices[0]
    content = EvenBatches(client_state[0].source, at).stacked()
    if not takes(content, ndim=2):
        return None
    content[1][torch.from_numpy(np.arange(at.shape[1]) >= np.array(sizes)[:, None])] = IGNORED
    return content


def stacked(batches: Sequence[Batch]) -> tuple[Tensor, ...]:
    """Batches of one size as tensors [C, B, ...]; out of one data set by a single gather."""
    if isinstance(batches, EvenBatches):
        return batches.stacked()
    together = IndexedBatch.together(batches)
    if together is not None:
        return tuple(t.unflatten(0, (len(batches), -1)) for t in together)
    return tuple(torch.stack(parts) for parts in zip(*(b.content for b in batches), strict=True))
