"""The gradient oracle: parameters [C, d] and C mini-batches -> losses [C] and gradients [C, d].

`LoopOracle` computes the gradients of the module's `training_step` for one client after the other. It translates steps
with small convolutions (`core/innermost`), replays recordings of other steps if the replay has the same bits as
autograd (`core/recorded`), and uses autograd otherwise. `VectorizedOracle` (vectorized.py) computes all C clients in
one call.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raylfl.core.flat import FlatModule
from raylfl.core.innermost.steps import InnermostSteps
from raylfl.core.recorded.program import Program
from raylfl.core.recorded.steps import RecordedSteps
from raylfl.core.step_log import StepLog
from raylfl.errors import BadConfig

if TYPE_CHECKING:
    from raylfl.core.lane_steps import LaneSteps


class Batch:
    """One mini-batch: the argument of `training_step` (`content`) and its number of samples (`size`)."""

    random = False  # whether reading `content` draws random numbers (augmentation)

    def __init__(self, content: Any, size: int):
        self._content, self.size = content, size

    @property
    def content(self) -> Any:
        return self._content

    def fresh(self) -> Any:
        """The content as it was before any step changed it in place; a batch of its own reads its samples again."""
        return self._content


class GradientMode(NamedTuple):
    """How gradients are computed.

    name: recorded, autograd, batch_last (samples innermost in memory) or cohort (all clients in one call). why: the
    reason for this choice.
    """

    name: str
    why: str


REPLAYED = GradientMode("recorded", "the replay has autograd's bits")
RECORDING = GradientMode("autograd", "to record a kind of batch and to compare its replay")
BATCH_LAST = GradientMode("batch_last", "small convolutions as matrix products, the samples of a batch innermost")


class Oracle(ABC):
    """The interface of gradient oracles: losses and gradients of C clients on one mini-batch each.

    Every call of `gradients` returns new tensors that the caller may keep and change. Losses remain tensors on the
    parameters' device, because reading a loss would synchronise the GPU in every local step. ways: for each
    `GradientMode`, the number of gradients computed in this mode.
    """

    lanes: LaneSteps | None = None
    """Takes the local steps of all clients side by side on a GPU; None: the local solver takes them."""
    held: Tensor | None = None
    """The oracle's own memory, if `workspace` may return it; later calls of the oracle overwrite it. None: every
    workspace is new memory."""

    def __init__(self) -> None:
        self.ways: Counter[GradientMode] = Counter()

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of parameters d."""

    @abstractmethod
    def workspace(self, count: int) -> Tensor:
        """Memory [count, d] for the parameters of `count` clients in local steps: new, or the oracle's (`held`)."""

    @abstractmethod
    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        """(losses [C], gradients [C, d]); entry c is of batches[c] at the parameters x[c].

        seeds(c): the seed of the global random generators for entry c.
        """

    def reorder(self, order: np.ndarray) -> None:  # noqa: B027 - most hold nothing
        """Reorders the buffers that the oracle holds for each client: row k becomes the former row order[k]."""


class LoopOracle(Oracle):
    """Gradients of one client after the other, from the module's `training_step`."""

    def __init__(
        self,
        flat: FlatModule,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        innermost: InnermostSteps | None = None,
        step: str = "auto",
        log: StepLog | None = None,
    ):
        """An oracle of the module `flat.module`.

        autocast: makes the precision context of the forward passes. innermost: the module's steps translated to the
        memory order `batch_last`; None: this order is not used. step: auto (recorded where possible), recorded (raises
        BadConfig for a step that cannot be recorded) or autograd. log: receives the values that `training_step` logs.
        """
        super().__init__()
        self.flat, self.autocast, self.held = flat, autocast, flat.params
        self.module: Any = flat.module
        self.innermost = innermost
        self._compiled: Callable[..., Any] | None = None
        self.must_record = step == "recorded"
        self.steps = RecordedSteps(flat.module, flat.parameters, self.loss, self.gradient, log)
        if step == "autograd":
            self.steps.refusal = "runtime.step=autograd"

    def through_training_step(self, reason: str, logs: bool) -> None:
        """Makes all later gradients keep the side effects of `training_step`.

        Later gradients are computed by replays or autograd if logging is the only side effect (`logs`), otherwise by
        autograd. reason: the side effect, as the end of a sentence that begins with `training_step`.
        """
        if not logs:
            self.steps.refusal = reason
        self.innermost = None

    @property
    def width(self) -> int:
        return self.flat.width

    def evaluating(self) -> AbstractContextManager[object]:
        """A context in which the module's network is evaluated in the same memory order as in local steps."""
        return nullcontext() if self.innermost is None else self.innermost.evaluating()

    def workspace(self, count: int) -> Tensor:
        if count == 1:
            return self.flat.params[None]  # the module's own memory: no copy in a local step
        return self.flat.params.new_empty(count, self.flat.width)

    def write_buffers(self, rows: Tensor) -> None:
        """Sets the module's buffers for the next client, from all its buffers as one vector [1, b]."""
        self.flat.write_buffers(rows[0])

    def changed_buffers(self) -> list[str]:
        """The names of the buffers that do not travel and that the last call has changed."""
        return self.flat.changed_buffers()

    def read_buffers(self) -> Tensor:
        """The module's buffers after the last call, as one vector [1, b]."""
        return self.flat.read_buffers()[None]

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        losses, rows = [], []
        for c, batch in enumerate(batches):
            self.flat.load(x[c])
            loss, row = self._taken(batch, lambda c=c: seeds(c))  # type: ignore[misc]
            rows.append(row)
            losses.append(loss)
        if len(rows) == 1:
            return losses[0][None], rows[0][None]
        return torch.stack(losses), torch.stack(rows)

    def _taken(self, batch: Batch, seed: Callable[[], int]) -> tuple[Tensor, Tensor]:
        """(loss, gradient [d]) of one batch at the loaded parameters.

        seed: gives the seed of the global random generators; it is called only if the batch or the step may draw.
        """
        if batch.random:
            seed_everything(seed())
        with self.autocast():
            content = batch.content
        step = self.innermost.of(content, private_randomness) if self.innermost is not None else None
        if step is not None and step.convolutions:
            row = self.flat.params.new_empty(self.flat.width)
            self.ways[BATCH_LAST] += 1
            return step.gradients(content, self.flat.parameters, self.flat.views(row)), row
        program = self.steps.program(content)
        if not batch.random:
            seed_for(program, seed)
        if program is not None:
            self.ways[REPLAYED] += 1
            return self.steps.replay(program, content)
        taken = self.steps.take(content)
        if self.must_record:
            self.steps.must_be_possible()
        self.ways[RECORDING if self.steps.refusal is None else GradientMode("autograd", self.steps.reason)] += 1
        return taken

    def compile(self, backend: str) -> None:
        """Compiles `training_step` by torch.compile with this backend; all later steps use it, with autograd."""
        self._compiled = torch.compile(self.module.training_step, backend=backend)
        self.innermost, self.steps.refusal = None, f"runtime.compile={backend}"

    def loss(self, content: Any) -> Tensor:
        """The scalar loss of `training_step` for the content of a batch, with its autograd graph."""
        with self.autocast():
            return loss_of((self._compiled or self.module.training_step)(content, 0), self.module)

    def gradient(self, loss: Tensor) -> list[Tensor | None]:
        """The gradient of each parameter; also makes the original tensors the module's buffers again."""
        found = self.flat.gradients(loss)
        self.flat.take_back_buffers()
        return found


def loss_of(output: Any, module: nn.Module) -> Tensor:
    """The scalar loss in `output`, the return value of `training_step`: the value itself, or its entry `loss`.

    Raises BadConfig for any other value. module: is named in the error message.
    """
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        skip = " (to skip a batch, return a loss whose gradient is 0)" if output is None else ""
        raise BadConfig(
            f"{type(module).__name__}.training_step returned {shown}, "
            f"but must return the loss (a scalar tensor) or a dict with `loss`{skip}"
        )
    return loss.reshape(())


def seed_torch(seed: int) -> None:
    """Seeds torch's default CPU generator, and the CUDA generators if CUDA is in use."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def seed_for(program: Program | None, seed: Callable[[], int]) -> None:
    """Seeds the global generators that a step may draw from; seed() is called only if there are any.

    program: the replay of the step, which draws from torch's generators or from none. None: the step is not replayed,
    and may draw from all.
    """
    if program is None:
        seed_everything(seed())
    elif program.draws:
        seed_torch(seed())


def seed_everything(seed: int) -> None:
    """Seeds the global generators of torch, numpy and random, for user code that draws from them."""
    seed_torch(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def private_randomness(seed: int | None = None) -> Iterator[None]:
    """A context that restores the global generators of torch, numpy and random on exit.

    seed: seeds them on entry; None: they keep their states.
    """
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
