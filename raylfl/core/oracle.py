"""The gradient oracle: parameters [C, d] and C mini-batches -> losses [C] and gradients [C, d].

`LoopOracle` takes C steps of the module's own `training_step`, whatever a LightningModule may do in it: by replay of
its recording (`core/recorded`) where that has autograd's bits, by autograd elsewhere. Its sibling in `vectorized.py`
does all C at once.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raylfl.core.batch_last import BatchLast
from raylfl.core.chain import Chain
from raylfl.core.flat import FlatModule
from raylfl.core.recorded.steps import RecordedSteps, leaves_of
from raylfl.errors import BadConfig


class Batch:
    """One mini-batch as `training_step` gets it (`content`), and how many samples it holds."""

    random = False  # whether looking at `content` draws random numbers (augmentation)

    def __init__(self, content: Any, size: int):
        self._content, self.size = content, size

    @property
    def content(self) -> Any:
        return self._content


class Oracle(ABC):
    """Gradients of a cohort's losses. Every call returns fresh tensors that the caller may keep and change.

    Losses stay tensors on the parameters' device: to look at one would make a GPU wait in every local step.
    """

    @property
    @abstractmethod
    def width(self) -> int:
        """d."""

    @abstractmethod
    def workspace(self, count: int) -> Tensor:
        """[C, d] to keep the clients' parameters in while they run; valid until the next call."""

    @abstractmethod
    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        """(losses [C], gradients [C, d]) of batch c at x[c], global generators seeded by seeds(c)."""


class LoopOracle(Oracle):
    """C passes through `module.training_step`, one after the other."""

    def __init__(
        self,
        flat: FlatModule,
        autocast: Callable[[], AbstractContextManager] = nullcontext,
        split_after: str | None = None,
        batch_last: bool = False,
        step: str = "auto",
    ):
        """autocast: the precision context of the device. split_after: cut the model there (split learning).
        batch_last: chains as `BatchLast`. step: auto (recorded where that is possible), recorded, autograd.
        """
        self.flat, self.autocast = flat, autocast
        self.module: Any = flat.module
        plain = autocast is nullcontext and flat.params.device.type == "cpu"
        chain = Chain.of(flat.module) if plain and batch_last else None
        cut = place_of(split_after, flat.module, chain) if split_after else None
        if chain is None or (split_after and cut is None):
            self.chain = None
        else:
            self.chain = BatchLast(chain.layers, cut)
        self.insists = step == "recorded"
        self.steps = RecordedSteps(flat.module, flat.parameters, self._loss, self._gradient)
        if step == "autograd":
            self.steps.refusal = "runtime.step=autograd"
        elif split_after:
            self.steps.refusal = "a model that is cut in two"
        self.split_after = split_after
        self.split: SplitPoint | Chain | None = (self.chain or SplitPoint(flat, split_after)) if split_after else None

    @property
    def width(self) -> int:
        return self.flat.width

    def evaluating(self) -> AbstractContextManager:
        """Within it the module's network takes the same way forward as in a local step."""
        chain = self.chain
        return chain.in_place_of(self.module.cross_entropy_chain) if isinstance(chain, BatchLast) else nullcontext()

    def workspace(self, count: int) -> Tensor:
        if count == 1:
            return self.flat.params[None]  # the module's own memory: no copy a step
        return self.flat.params.new_empty(count, self.flat.width)

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        losses, rows = [], []
        for c, batch in enumerate(batches):
            self.flat.load(x[c])
            if isinstance(self.split, Chain) and not self.split.takes(batch.content):  # targets that are no classes
                self.chain, self.split = None, SplitPoint(self.flat, str(self.split_after))
            loss, row = self._taken(batch, lambda c=c: seeds(c))  # type: ignore[misc]
            rows.append(row)
            losses.append(loss)
        if len(rows) == 1:
            return losses[0][None], rows[0][None]
        return torch.stack(losses), torch.stack(rows)

    def _taken(self, batch: Batch, seed: Callable[[], int]) -> tuple[Tensor, Tensor]:
        """(loss, gradient [d]) of one step. Generators are seeded only where something may draw from them."""
        if batch.random:
            seed_everything(seed())
        with self.autocast():
            content = batch.content
        if self.chain is not None and self.chain.takes(content):
            row = self.flat.params.new_empty(self.flat.width)
            return self.chain.loss_and_gradient(content, self.flat.views(row)), row
        program = self.steps.program(content)
        if not batch.random and (program is None or program.draws):
            seed_everything(seed())
        if program is not None:
            row = self.flat.params.new_empty(self.flat.width)
            return program(leaves_of(content), row), row
        taken = self.steps.take(content)
        if self.insists and self.steps.refusal is not None:
            name = type(self.module).__name__
            raise BadConfig(f"runtime.step=recorded, but {name}.training_step {self.steps.refusal} (leave it at auto)")
        return taken

    def _loss(self, content: Any) -> Tensor:
        with self.autocast():
            return loss_of(self.module.training_step(content, 0), self.module)

    def _gradient(self, loss: Tensor) -> Sequence[Tensor | None]:
        if isinstance(self.split, SplitPoint):
            return self.flat.views(self.split.gradient(loss))
        return torch.autograd.grad(loss, self.flat.parameters, allow_unused=True)


def loss_of(output: Any, module: nn.Module) -> Tensor:
    """The scalar loss in what `training_step` returned: itself, or its `loss`. Raises BadConfig otherwise."""
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise BadConfig(
            f"{type(module).__name__}.training_step returned {shown}, "
            "but must return the loss (a scalar tensor) or a dict with `loss`"
        )
    return loss.reshape(())


def seed_torch(seed: int) -> None:
    """Seed torch's default CPU generator, and the CUDA ones where they are in use."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch, numpy and random, for user code that draws from them."""
    seed_torch(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def private_randomness(seed: int | None = None) -> Iterator[None]:
    """The global generators are put back afterwards; seeded for what happens inside, if a seed is given."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    if seed is not None:
        seed_everything(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)
        np.random.set_state(before[1])
        random.setstate(before[2])


def place_of(name: str, module: nn.Module, chain: Chain | None) -> int | None:
    """Where in the chain the module's layer of this name is; None where it is not one of the chain's."""
    layer = dict(module.named_modules()).get(name)
    layers = chain.layers if chain is not None else []
    return next((k for k, other in enumerate(layers) if other is layer), None)


class SplitPoint:
    """A model cut after a named layer: two halves that exchange activations and their gradients.

    Split learning (Li & Lyu 2023, app. A; SplitFed, Thapa 2022): the client runs the layers up to the cut and
    sends its activations; the server runs the rest forward and backward, and sends their gradient back; the
    client finishes the backward pass. The cut tensor is detached, so the halves share nothing else.
    """

    def __init__(self, flat: FlatModule, after: str):
        modules = dict(flat.module.named_modules())
        if after not in modules:
            names = [name for name in modules if name]
            raise BadConfig(
                f"algorithm.cut={after}, but must be a layer of {type(flat.module).__name__}: {', '.join(names)}"
            )
        self.flat, self.after = flat, after
        self.client_side: list[bool] | None = None  # per parameter, seen in the first backward pass
        self.exchanged_floats = 0  # of activations up, and of gradients down, since the last reading
        self._halves: list[tuple[Tensor, Tensor]] = []
        modules[after].register_forward_hook(self._cut)

    def _cut(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return output  # evaluation uses the whole model
        if not isinstance(output, Tensor):
            raise BadConfig(f"algorithm.cut={self.after}, but must be a layer whose output is one tensor")
        smashed = output.detach().requires_grad_()
        self._halves.append((output, smashed))
        return smashed.clone()  # a layer in place may follow: it must not write on the cut itself

    def gradient(self, loss: Tensor) -> Tensor:
        """The whole gradient [d]: the server's backward pass, then the client's from the returned gradient."""
        halves, self._halves = self._halves, []
        if len(halves) != 1:
            raise BadConfig(f"algorithm.cut={self.after}, but must be a layer that runs once a forward pass")
        output, smashed = halves[0]
        params = self.flat.parameters
        first = self.client_side is None  # whether the cut is one shows in both passes: keep the graph for it
        *server, back = torch.autograd.grad(loss, [*params, smashed], allow_unused=True, retain_graph=first)
        if back is None:
            raise BadConfig(f"algorithm.cut={self.after}, but must be a layer on the way to the loss")
        client: Sequence[Tensor | None] = [None] * len(params)
        if output.requires_grad:
            client = torch.autograd.grad(output, params, grad_outputs=back, allow_unused=True)
        pieces: list[Tensor] = []
        for p, ours, theirs in zip(params, client, server, strict=True):
            if ours is not None and theirs is not None:
                raise BadConfig(
                    f"algorithm.cut={self.after}, but must split the parameters in two halves: "
                    "some are used on both sides (a connection skips the cut)"
                )
            g = ours if ours is not None else theirs
            pieces.append(g.reshape(-1) if g is not None else p.new_zeros(p.numel()))
        self.client_side = [g is not None for g in client]
        self.exchanged_floats += smashed.numel()
        return torch.cat(pieces)

    @property
    def client_width(self) -> int:
        """Parameters of the client's half, known after the first gradient."""
        assert self.client_side is not None
        return sum(n for n, mine in zip(self.flat.sizes, self.client_side, strict=True) if mine)
