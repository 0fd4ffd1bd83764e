"""Trial steps on a few samples, which determine how a worker computes local steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from raylfl.core.cut import Cut
from raylfl.core.innermost.step import Innermost
from raylfl.core.innermost.steps import InnermostSteps
from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import LoopOracle, private_randomness, seed_everything
from raylfl.core.recorded.guards import host_randomness
from raylfl.core.recorded.state import state_of
from raylfl.core.recorded.tape import side_effect
from raylfl.core.samples import BatchSource
from raylfl.core.step_log import StepLog
from raylfl.core.vectorized import VectorizedOracle, large_samples, refusal
from raylfl.parts import WorkerSetup
from raylfl.runtime.workers.attributes import Attributes
from raylfl.runtime.workers.evaluate import Recorder
from raylfl.runtime.workers.training import Training, TrainingLog


def innermost_step(steps: InnermostSteps, setup: WorkerSetup, recorder: Recorder) -> Innermost | None:
    """The module's step, translated so that the samples of a batch are the last dimension; traced on two samples.

    None if the step cannot be translated (`raylfl.core.innermost`) or logs values.
    """
    module, dtype = steps.module, next(steps.module.parameters()).dtype
    log, attributes = TrainingLog(StepLog(), 1), Attributes(module)
    try:
        module.train()
        with private_randomness(keyed_int(setup.seed, "check")), recorder.into(log):
            step = steps.of(BatchSource(setup.train, torch.device("cpu"), dtype).batch(setup.trial).content)
    except Exception:
        return None  # `check` reports the failure
    finally:
        attributes.restore()
    return step if not log.step.values else None


class StepTrials:
    """Trial steps of a worker's module; after each one, the module's buffers and attributes are restored."""

    def __init__(
        self,
        setup: WorkerSetup,
        loop: LoopOracle,
        train: BatchSource,
        training: Training,
        attributes: Attributes,
        recorder: Recorder,
    ):
        """Trials with the gradients of `loop`.

        train: the training data; attributes: restores the module's attributes; recorder: drops the values that trials
        log, except in `training_step_only`.
        """
        self.setup, self.loop, self.flat, self.train, self.training = setup, loop, loop.flat, train, training
        self.attributes, self.recorder, self.algorithm = attributes, recorder, setup.algorithm
        self.buffers = self.flat.read_buffers()

    def cut(self) -> Cut | None:
        """The cut of a split model, with its traffic; None if the algorithm does not split models."""
        if self.algorithm.cut is None:
            return None
        with self._trial():
            batch, flat = self.train.batch(self.setup.trial), self.flat
            loss = partial(self.loop.loss, batch.content)
            return Cut.after(self.algorithm.cut, flat.module, flat.parameters, loss, batch.size)

    def training_step_only(self) -> str | None:
        """The reason why local steps must call the module's `training_step`; None if they may be computed without it.

        The reasons are overridden hooks, use of batch_idx, and values that a trial step logs.
        """
        if self.training.shipped:
            return self.training.reason
        runtime = self.setup.runtime
        if runtime.step != "autograd" and runtime.compile is None:
            with self._trial(), self.loop.autocast():
                self.training.try_without_index(self.train.batch(self.setup.trial[:1]))
        with self._trial(), self.loop.autocast():
            logged = self.training.logged_in(self.train.batch(self.setup.trial[:1]))
        return self.training.reason or logged

    def one_by_one(self, by_hand: bool) -> str | None:
        """The reason why clients run one by one; None if several clients run in one vectorised call.

        by_hand: whether batched matrix products may replace vmap.
        """
        algorithm, setup = self.algorithm, self.setup
        if algorithm.cut is not None or algorithm.pattern.sequential:
            return f"{type(algorithm).__name__} works with one client at a time"
        if setup.optimizer == "module" and not algorithm.own_step:
            return "local.optimizer=module keeps its state for one client"
        if self.training.alone:
            return self.training.alone
        if setup.runtime.compile is not None:
            return "runtime.compile takes the steps of one client"
        if setup.pinned:
            return "clients are pinned, and the bits of a vectorised call depend on the clients that share it"
        if setup.train.arrays is None:
            return "the data set returns samples one by one"
        reason = refusal(self.flat, self.flat.params.device, setup.runtime.vectorize)
        return reason or self._large_samples() or self._vmap_refusal(by_hand)

    def vectorized(self, by_hand: bool) -> VectorizedOracle:
        """The gradient oracle for vectorised calls.

        by_hand: whether batched matrix products may replace vmap.
        """
        oracle = VectorizedOracle(self.flat, self.loop.autocast, by_hand, self.training.log, self.setup.runtime.step)
        oracle.steps.refusal = oracle.steps.refusal or self.training.reason
        return oracle

    def _large_samples(self) -> str | None:
        """The reason why samples are too large for vectorised steps (`vectorize: auto`); None if they are not."""
        if self.setup.runtime.vectorize != "auto" or self.flat.params.device.type != "cpu":
            return None
        with self._trial():
            one, two = (self.train.batch(self.setup.trial[:count]).content for count in (1, 2))
            return large_samples(self.flat, self.loop.loss, one, two)

    def _vmap_refusal(self, by_hand: bool) -> str | None:
        """The reason why one step cannot serve several clients, from a trial with 2 clients; None if it can.

        There are two reasons: vmap raises an error, or the step has side effects in Python, which a vectorised call
        would have once for all its clients.
        """
        oracle, module = self.vectorized(by_hand), self.flat.module
        x, batch = oracle.workspace(2).copy_(self.flat.params), self.train.batch(self.setup.trial)
        try:
            with self._trial():  # batch normalisation needs two samples for its statistics
                seed_everything(0)  # as the oracle will do
                before, drawn = state_of(module), host_randomness()
                oracle.gradients(x, [batch] * 2, lambda c: 0)
                effect = side_effect(module, before, host_randomness() if batch.random else drawn)
        except Exception as error:
            line = str(error).strip().splitlines()
            return f"vmap refuses the model ({line[0] if line else type(error).__name__})"
        return None if effect is None else f"training_step {effect}, which a vectorised call would do once for several"

    @contextmanager
    def _trial(self) -> Iterator[None]:
        """A context for one trial, in training mode and with private random generators; logged values are dropped."""
        self.flat.module.train()
        try:
            with private_randomness(keyed_int(self.setup.seed, "check")), self.recorder.into(None):
                yield
        finally:
            self.flat.write_buffers(self.buffers)
            self.attributes.restore()
