"""The gradient oracle: parameters [C, d] and C mini-batches -> losses [C] and gradients [C, d].

`LoopOracle` computes the gradients of the module's `training_step` for one client after the other, by the reference
step (`reference.py`). It translates steps with small convolutions (`replay/innermost`), and replays recordings of other
steps if their results have the reference's bits (`replay/recorded`). `VectorizedOracle` (vectorized.py) computes all C
clients in one call.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylfl.core.flat import FlatModule
from raylfl.core.reference import ReferenceStep
from raylfl.replay.effects import generator_states, set_generators
from raylfl.replay.innermost.step import Innermost
from raylfl.replay.innermost.steps import InnermostSteps
from raylfl.replay.proof import Diverged, Outcome, ProofSchedule, compare
from raylfl.replay.recorded.program import Program
from raylfl.replay.recorded.steps import RecordedSteps
from raylfl.replay.step_log import StepLog


class Batch:
    """One mini-batch: the argument of `training_step` (`content`) and its number of samples (`size`)."""

    random = False  # whether reading `content` draws random numbers (augmentation)

    def __init__(self, content: Any, size: int):
        self._content, self.size = content, size

    @property
    def content(self) -> Any:
        return self._content

    def fresh(self) -> Any:
        """The content as it was before any step changed it in place; subclasses may read the samples again."""
        return self._content


class GradientMode(NamedTuple):
    """How gradients are computed.

    name: recorded, autograd, batch_last (samples last in memory) or cohort (all clients in one call). why: the
    reason for this choice.
    """

    name: str
    why: str


REPLAYED = GradientMode("recorded", "the replay has autograd's bits")
RECORDING = GradientMode("autograd", "to record a kind of batch and to compare its replay")
BATCH_LAST = GradientMode("batch_last", "small convolutions as matrix products, in batch-last layout")


class Oracle(ABC):
    """The interface of gradient oracles: losses and gradients of C clients on one mini-batch each.

    Every call of `gradients` returns new tensors that the caller may keep and change. Losses remain tensors on the
    parameters' device, because reading a loss would synchronise the GPU in every local step. ways: for each
    `GradientMode`, the number of gradients computed in this mode.
    """

    lanes: Any = None
    """`LaneSteps`, which take the local steps of all clients of a call on a GPU; None: the local solver takes them."""
    held: Tensor | None = None
    """The oracle's own memory, if `workspace` may return it; later calls of the oracle overwrite it. None: every
    workspace is new memory."""
    t = 0
    """The number of the present local step, which `training_step` gets as `batch_idx`."""
    without_gradient: frozenset[int] = frozenset()
    """As in `FlatModule`; always empty for several clients at once."""

    def __init__(self) -> None:
        self.ways: Counter[GradientMode] = Counter()

    def doubt(self) -> None:
        """Called before an evaluation, whose user code may change what a step reads."""
        if self.lanes is not None:
            self.lanes.doubt()

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
        self.reference, self.schedule = ReferenceStep(flat, autocast), ProofSchedule()
        self.innermost, self.log = innermost, log or StepLog()
        self.note = ""  # why no faster form is used, as its results differ
        self.must_record = step == "recorded"
        self.steps = RecordedSteps(
            flat.module, flat.parameters, self.reference.loss, self.gradient, self.log, reference=self.reference
        )
        if step == "autograd":
            self.steps.refusal = "runtime.step=autograd"

    def through_training_step(self, reason: str) -> None:
        """Has the reference step compute all later gradients.

        reason: why, as the end of a sentence that begins with `training_step`.
        """
        self.steps.refusal, self.innermost = reason, None

    @property
    def width(self) -> int:
        return self.flat.width

    @property
    def without_gradient(self) -> frozenset[int]:
        return self.flat.without_gradient

    @without_gradient.setter
    def without_gradient(self, numbers: frozenset[int]) -> None:
        self.flat.without_gradient = numbers

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
            loss, row = self._take(batch, lambda c=c: seeds(c), x[c])  # type: ignore[misc]
            rows.append(row)
            losses.append(loss)
        if len(rows) == 1:
            return losses[0][None], rows[0][None]
        return torch.stack(losses), torch.stack(rows)

    def _take(self, batch: Batch, seed: Callable[[], int], x: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, gradient [d]) of one batch at the loaded parameters.

        seed: gives the seed of the global random generators; it is called only if the batch or the step may draw. x:
        the parameters [d], into which changes in place are written.
        """
        if batch.random:
            seed_everything(seed())
        with self.autocast():
            content = batch.content
        step = self.innermost.of(content, private_randomness) if self.innermost is not None else None
        if step is not None and step.convolutions:
            row = self.flat.params.new_empty(self.flat.width)
            self.ways[BATCH_LAST] += 1
            loss = step.gradients(content, self.flat.parameters, self.flat.views(row))
            if self.schedule.due(step, self.t):
                self._prove(content, Outcome(loss, row), step)
                self.schedule.proved(step, self.t)
            return loss, row
        program = self.steps.program(content, self.t)
        if not batch.random:
            seed_for(program, seed)
        if program is not None:
            self.ways[self._mode(REPLAYED)] += 1
            self.without_gradient = program.without_gradient
            return self.steps.replay(program, content)
        taken = self.steps.take(content, self.t)
        self.flat.store(x)
        if self.must_record:
            self.steps.must_be_possible()
        mode = RECORDING if self.steps.refusal is None else GradientMode("autograd", self.steps.reason)
        self.ways[self._mode(mode)] += 1
        return taken

    def _mode(self, mode: GradientMode) -> GradientMode:
        return GradientMode(mode.name, f"{mode.why}; {self.note}") if self.note else mode

    def _prove(self, content: Any, translated: Outcome, form: Innermost) -> None:
        """Compares a translated step with the reference at the loaded parameters; raises Diverged if it differs."""

        def translated_at(x: Tensor) -> Outcome:
            self.flat.load(x)
            row = torch.empty_like(x)
            return Outcome(form.gradients(content, self.flat.parameters, self.flat.views(row)), row)

        params, pieces = self.flat.params.clone(), dict(zip(self.flat.names, self.flat.sizes, strict=True))
        with self.reference.aside(self.log):
            step = partial(self.reference.outcome, content=content, batch_idx=self.t, log=self.log)
            differs = compare(step, params, translated, pieces, self.reference.eps, translated_at)
        if differs is not None:
            text = f"{type(self.flat.module).__name__}.training_step has other results in batch-last layout: {differs}"
            raise Diverged(f"{text}, in local step {self.t}", "runtime.layout=contiguous")

    def doubt(self) -> None:
        self.steps.doubt()
        self.schedule.doubt()

    def compile(self, backend: str) -> None:
        """Compiles `training_step` by torch.compile with this backend; all later steps use it, with autograd."""
        self.reference.training_step = torch.compile(self.flat.module.training_step, backend=backend)  # type: ignore
        self.innermost, self.steps.refusal = None, f"runtime.compile={backend}"

    def loss(self, content: Any) -> Tensor:
        """The scalar loss of `training_step` for the content of a batch, with its autograd graph."""
        return self.reference.loss(content, self.t)

    def gradient(self, loss: Tensor) -> list[Tensor | None]:
        """The gradient of each parameter; also makes the original tensors the module's buffers again."""
        gradients = self.flat.gradients(loss)
        self.flat.take_back_buffers()
        return gradients


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
    states = generator_states()
    if seed is not None:
        seed_everything(seed)
    try:
        yield
    finally:
        set_generators(*states)
