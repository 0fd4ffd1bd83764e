"""Probe steps on the run's own batches, which determine how a worker computes local steps."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from raylfl.core.cut import Cut
from raylfl.core.flat import FlatModule
from raylfl.core.keyed import keyed_int
from raylfl.core.local_optimizer import SGD
from raylfl.core.oracle import Batch, LoopOracle, private_randomness, seed_everything
from raylfl.core.samples import BatchSource
from raylfl.core.vectorized import VectorizedOracle
from raylfl.errors import headline
from raylfl.experiment.parts import WorkerSetup
from raylfl.replay.effects import StepState, attributes_of, first_difference
from raylfl.replay.proof import Diverged, Outcome, ProofSchedule, difference, is_within, same_bits
from raylfl.replay.recorded.tape import record_step
from raylfl.runtime.workers.attributes import Attributes
from raylfl.runtime.workers.probe_modes import HooksOnTensors, Operators
from raylfl.runtime.workers.training import LocalObserver, Training, TrainingLog

T = TypeVar("T")
LARGEST_ON_CPU = 150_000  # largest d; more parameters do not fit in the caches, and one client at a time is faster
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MOST_OPERATIONS = 50_000_000  # of a client's step with convolutions; more run faster side by side on a GPU
LARGEST_SAMPLE = 1000  # largest mean number of entries per sample in an operator's result, for the same reason
ASSIGNED = "each client is assigned to a worker"
CARRIED = "from client to client: results may depend on the number of workers"
PARAMETER_HOOK = "a hook on a parameter"  # of no effect on the gradients of a comparison, as if it changes small ones
CLIPPED = "its gradient does not grow with its loss, or has hooks of the step, as where a hook clips it"
METRIC = "logs a metric object"  # whose state is of one client
SCALES = (2.0**20, 2.0**-20)  # of losses whose gradients a hook would clip, or set to 0
NUMBERS = (*range(2, 8), 10, 11, 100, 101)  # further local steps: one that ignores batch_idx has the same results


class Scaled(NamedTuple):
    """The gradients of a loss times SCALES, at which hooks that clip large or small gradients show themselves.

    linear: whether they are the gradient of the loss times these. recorded: whether torch.autograd.grad, of which
    recordings are made, gives the bits of `backward`.
    """

    linear: bool
    recorded: bool


class StepProbes:
    """Probe steps of a worker's module; after each one, the module's parameters, buffers and attributes are restored.

    differences: one line for each form of the step that is not used because its results differ. shown: the result of
    each kind of probe, and its lines; on a CPU those of the check before the run, which are not made again.
    """

    def __init__(
        self, setup: WorkerSetup, loop: LoopOracle, train: BatchSource, training: Training, attributes: Attributes
    ):
        """Probes with the gradients of `loop`, on training data; attributes: restores the module's attributes."""
        self.setup, self.loop, self.flat, self.train, self.training = setup, loop, loop.flat, train, training
        self.attributes, self.algorithm = attributes, setup.algorithm
        self.buffers, self.parameters = self.flat.read_buffers(), self.flat.params.clone()
        self.differences: list[str] = []
        self.shown = dict(setup.probes) if self.flat.params.device.type == "cpu" else {}
        self.batches: list[list[Batch]] = []  # two of each of two clients
        self.at: dict[tuple[int, int], Tensor] = {}  # (client, step) -> the parameters of these steps
        self.row = self.parameters[:0]  # the gradient of the first step of the first client
        self.effect: str | None = None
        if not training.reason:
            self.effect = self._once("effect", self._effect) or self._once("branches", self._branches)
        if self.effect is not None:
            loop.innermost, loop.steps.refusal = None, loop.steps.refusal or self.effect
        if loop.steps.refusal is None and any(p._post_accumulate_grad_hooks for p in self.flat.parameters):
            loop.steps.refusal = f"has {PARAMETER_HOOK}, which torch.autograd.grad does not call"
        if loop.steps.refusal is None and not self._once("scaled", self._scaled).recorded:
            loop.steps.refusal = "has a gradient that torch.autograd.grad does not give (a hook, reentrant checkpoints)"

    def cut(self) -> Cut | None:
        """The cut of a split model, with its traffic; None if the algorithm does not split models."""
        if self.algorithm.cut is None:
            return None
        with self._probe():
            batch, flat = self.train.batch(self.setup.probe_samples), self.flat
            loss = partial(self.loop.loss, batch.content)
            return Cut.after(self.algorithm.cut, flat.module, flat.parameters, loss, batch.size)

    def cohort_pays(self) -> bool:
        """Whether one call for all clients is faster on a GPU than the clients' own steps side by side.

        Matrix products of several clients are one batched product. Convolutions with other weights for each client are
        slow, but small ones take less time than their launches.
        """
        if not any(isinstance(m, CONVOLUTIONS) for m in self.flat.module.modules()):
            return True
        return self.alone is None and self._once("operations", self._operations) <= MOST_OPERATIONS

    def _operations(self) -> float:
        """The multiplications and additions of a step of the largest batch; infinite if they cannot be counted."""
        try:
            with self._probe(), FlopCounterMode(display=False) as counter:
                self.loop.reference(self.train.batch(self.setup.probe_samples).content)
        except Exception:
            return math.inf
        return float(counter.get_total_flops()) * self.setup.batch_size / len(self.setup.probe_samples)

    def step_bytes(self) -> int:
        """The memory that one step of the largest batch allocates on the GPU, beside parameters and data."""
        samples, device = np.resize(self.setup.probe_samples, self.setup.batch_size), self.flat.params.device
        with self._probe():
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            self.loop.gradients(self.flat.params[None], [self.train.batch(samples)], lambda c: 0)
            return torch.cuda.max_memory_allocated(device) - before

    def _once(self, kind: str, probe: Callable[[], T]) -> T:
        """The result of a kind of probe, which is made if the check has not made it."""
        if kind not in self.shown:
            before = len(self.differences)
            result = probe()
            self.shown[kind] = result, self.differences[before:]
        else:
            result, lines = self.shown[kind]
            self.differences += lines
        return result

    def innermost(self) -> None:
        """Drops the translation of the step of one client (`LoopOracle.innermost`) if its results differ."""
        if self.loop.innermost is not None and not self._once("translated", self._is_translated):
            self.loop.innermost = None

    def _is_translated(self) -> bool:
        """Whether the translated step of one client has the reference's results."""
        if not self._once("scaled", self._scaled).linear:
            self.differences.append(CLIPPED)
            return False
        try:
            self._compare(self.loop, ((0,), (1,)), NUMBERS)
        except Diverged as error:
            self.differences.append(error.text)
            return False
        finally:
            self.loop.t, self.loop.schedule = 0, ProofSchedule()
        return True

    def vectorized(self) -> VectorizedOracle | str:
        """The gradient oracle for vectorised calls, or the reason why clients run one by one."""
        algorithm, setup = self.algorithm, self.setup
        if algorithm.cut is not None or algorithm.pattern.sequential:
            return f"{type(algorithm).__name__} works with one client at a time"
        if self.alone is not None:
            return self._alone(self.alone) if self.training.hooks or setup.accumulate > 1 else self.alone
        if setup.assigned:
            return f"{ASSIGNED}, and the bits of a vectorised call depend on the clients that share it"
        if setup.train.arrays is None:
            return "the data set returns samples one by one"
        vectorize, device = setup.runtime.vectorize, self.flat.params.device
        reason = refusal(self.flat, device, vectorize)
        if reason is None and vectorize == "auto" and device.type == "cpu":
            reason = self._once("large", self._large_samples)
        if reason is not None:
            return reason
        form = self._once("vectorized", self._fastest)
        return form if isinstance(form, str) else self._oracle(*form)

    def _large_samples(self) -> str | None:
        with self._probe():
            one, two = (self.train.batch(self.setup.probe_samples[:count]).content for count in (1, 2))
            return large_samples(self.flat, self.loop.loss, one, two)

    @property
    def alone(self) -> str | None:
        """The reason why a client's steps are taken one after the other on any device; None if there is none."""
        if self.setup.optimizer == "module" and not self.algorithm.own_step:
            return "local.optimizer=module keeps its state for one client"
        if self.setup.accumulate > 1:
            return "local.accumulate takes the batches of one client after the other"
        if self.flat.processes > 1:
            return f"the model is sharded over {self.flat.processes} processes, for one client at a time"
        if self.training.hooks:
            return f"the model's {next(iter(self.training.hooks))} is called for one client at a time"
        if self.setup.runtime.compile is not None:
            return "runtime.compile takes the steps of one client"
        return None if self.effect != METRIC else f"training_step {METRIC}"

    def _fastest(self) -> tuple[bool, bool] | str:
        """The fastest vectorised form (`_oracle`) whose results are the reference's; the reason if there is none."""
        if self.effect is not None:
            return self._alone(f"training_step {self.effect}")
        if not self._once("scaled", self._scaled).linear:
            return self._alone(CLIPPED)
        reason = ""
        for translated, by_hand in ((True, True), (False, True), (False, False)):
            oracle = self._oracle(translated, by_hand)
            possible = oracle.innermost is not None and oracle.innermost.possible
            if (translated and not possible) or (by_hand and not translated and not oracle.cohort_losses):
                continue  # the same form as the next one
            try:
                self._compare(oracle, ((0, 1), (1, 0)), NUMBERS if by_hand else ())
                if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self.flat.parameters):
                    return self._alone(f"the model has {PARAMETER_HOOK}, which a vectorised call leaves out")
                self.differences += [reason] * bool(reason)
                return translated, by_hand
            except Diverged as error:
                reason = error.text
            except Exception as error:
                reason = f"vmap refuses the model ({headline(error)})"
        return self._alone(reason)

    def _alone(self, reason: str) -> str:
        self.differences.append(f"clients work one by one: {reason}")
        return reason

    def _oracle(self, translated: bool, by_hand: bool) -> VectorizedOracle:
        oracle = VectorizedOracle(self.flat, self.loop.autocast, by_hand, self.training.log, self.setup.runtime.step)
        if not translated:
            oracle.innermost = None
        return oracle

    def _compare(
        self, oracle: LoopOracle | VectorizedOracle, orders: Sequence[tuple[int, ...]], numbers: Sequence[int]
    ) -> None:
        """Has an oracle compare two steps of the clients of each order; raises Diverged if a result differs.

        numbers: further numbers of the local step, at which the first one is compared in the first order.
        """
        self._prepare()
        for order, steps in [*((order, {0: 0, 1: 1}) for order in orders), *((orders[0], {0: t}) for t in numbers)]:
            with self._probe():
                oracle.write_buffers(self.buffers.expand(len(order), -1))
                if isinstance(oracle, VectorizedOracle):  # which is wrong if it reads the module's own parameters
                    self.flat.load(self.flat.params.fill_(torch.nan))
                for k, t in steps.items():
                    oracle.t, oracle.schedule = t, ProofSchedule()
                    x = torch.stack([self.at[client, k] for client in order])
                    oracle.gradients(x, [self.batches[client][k] for client in order], lambda c, k=k: k)  # type: ignore

    def _prepare(self) -> None:
        """Takes the steps of `_effect` again, if the check has taken them."""
        if not self.at:
            lines = list(self.differences)
            self._effect()
            self.differences = lines

    def _scaled(self) -> Scaled:
        """The gradients of multiples of the loss, by the reference and by torch.autograd.grad."""
        self._prepare()

        def row(scale: float, gradients: Callable[[Tensor], Tensor]) -> Tensor:
            with self._probe() as log:
                seed_everything(0)
                self.flat.load(self.at[0, 0])
                with hooks:
                    loss = self.loop.loss(copy.deepcopy(self.batches[0][0].content))
                out = gradients(scale * loss)
                self.flat.take_back_buffers()
                log.step.take()
            return out

        linear, recorded, hooks = True, True, HooksOnTensors()
        for scale in SCALES:
            within = False
            try:
                expected, scaled = scale * self.row, row(scale, self.flat.backward)
                within = is_within(expected, scaled, self.loop.reference.eps, float(expected.abs().amax()))
                recorded = recorded and same_bits(scaled, row(scale, self.flat.joined_gradients))
            except Exception:  # a hook that refuses large gradients, or one that torch.autograd.grad does not call
                recorded = False
            linear = linear and within and not hooks.registered
        return Scaled(linear, recorded)

    def _effect(self) -> str | None:
        """What two steps of two clients by the reference do besides their results, in both orders; None if nothing.

        The end of a sentence that begins with `training_step`.
        """
        first: dict[tuple[int, int], Outcome] = {}
        pieces = dict(zip(self.flat.names, self.flat.sizes, strict=True))
        try:
            self.batches = self._batches()
            for client in (0, 1, 1, 0):
                x = self.parameters.clone()
                for k in (0, 1):
                    found = self._step(client, k, x)
                    if isinstance(found, str):
                        return found
                    differs = difference(first.setdefault((client, k), found), found, pieces)
                    if differs is not None:
                        where = "state outside the module (a global, a closure, a class)"
                        self.differences.append(f"training_step carries {where} {CARRIED}")
                        return f"has other results after another client's step: {differs}"
                    self.at[client, k], x = x, x - self.setup.rule.lr * found.row
            self.row = first[0, 0].row
        except Exception as error:
            return f"fails in a probe step ({headline(error)})"
        return None

    def _branches(self) -> str | None:
        """The first number of the local step at which a step calls other operators than at 0, as `_effect`; or None.

        The results of such a branch may be equal so far.
        """
        self._prepare()
        try:
            at_first = self._operators_at(0)
            other = next((t for t in NUMBERS if self._operators_at(t) != at_first), None)
        except Exception as error:
            return f"fails in a probe step ({headline(error)})"
        return None if other is None else f"calls other operators at batch_idx={other} than at 0"

    def _operators_at(self, t: int) -> list[Any]:
        """The operators of the first step of the first client as local step t."""
        operators = Operators()
        with self._probe() as log:
            seed_everything(0)
            self.flat.load(self.at[0, 0])
            with operators:
                self.loop.reference.loss(copy.deepcopy(self.batches[0][0].content), t)
            self.flat.take_back_buffers()
            log.step.take()
        return operators.called

    def _step(self, client: int, k: int, x: Tensor) -> Outcome | str:
        """The outcome of a step by the reference at x [d], or what it does besides."""
        with self._probe() as log:
            seed_everything(k)
            self.flat.load(x)
            module, before = self.flat.module, StepState.of(self.flat.module)
            content = copy.deepcopy(self.batches[client][k].content)  # the step may change it in place
            outcome = self.loop.reference.outcome(x, content, k, log.step)
            effect, old, new = before.effect(), before.attributes, attributes_of(module)
            if first_difference(old, new) is None:
                return METRIC if log.objects else effect or outcome
            self._reset()
            restored = attributes_of(module)
            lasting = [n for n in {**old, **new} if old.get(n) not in (new.get(n), restored.get(n))]
            if lasting:
                self.differences.append(f"training_step carries the changed attribute {lasting[0]} {CARRIED}")
            return str(effect)

    def _batches(self) -> list[list[Batch]]:
        """Two batches of each of two clients: other shares of the two samples a and b that `check` has read.

        No others, because a sample that fails, hangs or is not finite is the fault of its client alone.
        """
        a, b = np.resize(self.setup.probe_samples, 2)
        with private_randomness(keyed_int(self.setup.seed, "check")):
            more_a, more_b = (
                Batch(self.train.batch(np.array(part)).content, len(part)) for part in ([a, b, a], [b, a, b])
            )
        return [[more_a, more_b], [more_b, more_a]]

    @contextmanager
    def _probe(self) -> Iterator[TrainingLog]:
        """A context for one probe, in training mode and with private random generators; gives what the probe logs."""
        self.flat.module.train()
        try:
            seed = keyed_int(self.setup.seed, "check")
            with private_randomness(seed), LocalObserver(self.training, 2, SGD(), 1, 1) as observer:
                yield observer.log
        finally:
            self._reset()

    def _reset(self) -> None:
        """Restores the module's parameters, buffers and attributes, as for each client of a run."""
        self.flat.load(self.flat.params.copy_(self.parameters))
        self.flat.write_buffers(self.buffers)
        self.attributes.restore()


def refusal(flat: FlatModule, device: torch.device, setting: str) -> str | None:
    """The reason why this model's clients run one at a time; None if they run in vectorised calls.

    setting: the option `runtime.vectorize` (auto, always or never).
    """
    if setting == "never":
        return "runtime.vectorize=never"
    if flat.buffers and device.type != "cpu":
        return "its buffers change in place"
    modules = list(flat.module.modules())
    if any(isinstance(m, nn.RNNBase) for m in modules):
        return "recurrent layers have no vmap rule"
    if setting == "always" or device.type != "cpu":
        return None
    if any(isinstance(m, CONVOLUTIONS) for m in modules):
        return "on a CPU convolutions run faster one client at a time"
    if flat.width > LARGEST_ON_CPU:
        return f"on a CPU more than {LARGEST_ON_CPU} parameters run faster one client at a time"
    return None


def large_samples(flat: FlatModule, loss: Callable[[Any], Tensor], one: Any, two: Any) -> str | None:
    """The reason why a step with large samples runs one client at a time on a CPU; None if it may be vectorised.

    A sample is large if an operator call makes on average more than LARGEST_SAMPLE entries for it, as in attention over
    a sequence. one, two: the contents of a batch of one sample and of a batch of two samples, with which the step is
    recorded. loss: gives the loss of a content.
    """
    both = _count_created(flat, loss, two)
    if both is None or both[0] <= LARGEST_SAMPLE * both[1]:
        return None
    first = _count_created(flat, loss, one)
    if first is None or both[0] - first[0] <= LARGEST_SAMPLE * both[1]:
        return None
    return f"on a CPU steps that make over {LARGEST_SAMPLE} numbers a call of a sample run faster one client at a time"


def _count_created(flat: FlatModule, loss: Callable[[Any], Tensor], content: Any) -> tuple[int, int] | None:
    """(number of entries, number of tensors) that a step creates for this batch; None if it cannot be recorded.

    Views are not counted.
    """
    recording = record_step(flat.module, flat.parameters, content, loss)
    if recording is None:
        return None
    results = [k for call in recording.calls if not call.views for k in call.results]
    return sum(math.prod(recording.geometry[k].shape) for k in results), len(results)
