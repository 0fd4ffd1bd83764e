"""A worker: a module, a local solver and the shards of all clients, as a plain class that an actor wraps."""

import gc
import math
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from raylfl.core.algorithm import State
from raylfl.core.arrays import Floats
from raylfl.core.batchnorm import allow_single_samples
from raylfl.core.buffers import travelling
from raylfl.core.cohort import CohortOracle
from raylfl.core.deferred import Deferred
from raylfl.core.flat import FlatModule
from raylfl.core.keyed import keyed_int
from raylfl.core.local import LocalResult, run_local
from raylfl.core.local_optimizer import LocalOptimizer
from raylfl.core.oracle import GradientMode, LoopOracle, private_randomness, seed_everything
from raylfl.core.partial_sums import SubtreeSums
from raylfl.core.reduce import block_norms, from_blocks
from raylfl.core.samples import BatchSource, SampleSet
from raylfl.core.torch_state import torch_defaults
from raylfl.core.transfer import all_to_host, to_device
from raylfl.core.unchanged import Unchanged
from raylfl.core.vectorized import VectorizedOracle
from raylfl.errors import BadConfig, RanksLost, exits_as_errors, traceback_text
from raylfl.experiment.parts import BUFFERS, MOMENTS, Initial, WorkerSetup
from raylfl.replay.innermost.steps import InnermostSteps
from raylfl.replay.proof import Diverged
from raylfl.runtime.stopping import time_limit
from raylfl.runtime.workers.attributes import Attributes
from raylfl.runtime.workers.evaluate import Evaluator, Recorder
from raylfl.runtime.workers.finiteness import not_finite
from raylfl.runtime.workers.forms import LocalForms
from raylfl.runtime.workers.local_work import cohort_work, merged_work
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.measures import ModelMeasures
from raylfl.runtime.workers.module import devices, innermost_step, layout_for, make_module
from raylfl.runtime.workers.optimizer import ModuleOptimizer, moments_of
from raylfl.runtime.workers.step_probes import StepProbes
from raylfl.runtime.workers.task import LOCAL_DRIFT, Chunk, ClientReports, ClientStates, Task, TaskResult, without_rows
from raylfl.runtime.workers.training import LocalObserver, Training


class Worker:
    """Runs local work and evaluations in this process.

    The result of a task depends on the task, the broadcast and the client states only: any worker can repeat it.
    """

    def __init__(self, setup: WorkerSetup, lost: Callable[[], object] = lambda: None):
        """A worker with this module, data and algorithm.

        lost: called, in a thread, if a further process of this worker has ended (`Ranks`).
        """
        self.setup = setup
        self.algorithm, self.unchanged = setup.algorithm, Unchanged(setup.algorithm)
        self.device, autocast = devices(setup)
        self.device_name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        self.recorder = Recorder()
        sharded = None
        if setup.runtime.processes > 1:
            from raylfl.runtime.workers.ranks import Ranks  # late: torch.distributed takes a second

            sharded = Ranks(setup, lost).flat
            module, self.device = sharded.module, sharded.params.device  # of batches and vectors
        else:
            module = make_module(setup.model, setup.seed)
            allow_single_samples(module)
        self.recorder.attach(module)
        steps = InnermostSteps(module)
        if sharded is None:
            self.layout = layout_for(module, self.device, setup, lambda: innermost_step(steps, setup, self.recorder))
            travels = travelling(module, setup.model.buffers, setup.whole_buffers)
            self.flat = FlatModule(module, setup.torch_dtype, self.device, self.layout == "channels_last", travels)
        else:
            self.flat, self.layout = sharded, "contiguous"
        self.evaluator = Evaluator(module, self.recorder)
        self.whole = frozenset(kind for kind in ("test", "val", "train") if self.evaluator.whole(kind))
        self.training = Training(self.flat, self.recorder, setup.rule.clip_norm, setup.accumulate)
        clips = "configure_gradient_clipping" in self.training.hooks
        self.rule = replace(setup.rule, clip_norm=None) if clips else setup.rule
        also = [] if sharded is None else [partial(sharded.ranks.together, "restore")]
        make = partial(make_module, setup.model, setup.seed) if sharded is None else None
        self.attributes = Attributes(module, also, make)
        self.initial = self._initial()
        self._initial_buffers = self.initial.buffers.to(self.device)
        images_last = self.layout != "contiguous"  # faster for any layout of the weights
        self.train = self._source(setup.train, self.layout == "channels_last")
        self.measured = self.train.measuring(images_last)
        self.sources = {  # sources of evaluations
            "train": self.measured,
            "test": self._source(setup.test, images_last) if setup.test is not None else None,
            "val": self._source(setup.val, images_last) if setup.val is not None else None,
        }
        batch_last = steps if self.layout == "batch_last" else None
        self.loop = LoopOracle(self.flat, autocast, batch_last, setup.runtime.step, self.training.log)
        self.measures = ModelMeasures(setup, self.evaluator, self.attributes, self.sources, self.loop)
        probes = StepProbes(setup, self.loop, self.train, self.training, self.attributes)
        self.cut = probes.cut()
        if self.training.reason is not None:
            self.loop.through_training_step(self.training.reason)
        probes.innermost()
        if setup.runtime.compile is not None:
            self.loop.compile(setup.runtime.compile)
        self.most_clients = math.inf  # largest number in one call; lowered if a GPU's memory does not suffice
        self._broadcast: tuple[State, State] = {}, {}  # the newest broadcast, on the host and on the device
        self.forms = LocalForms(probes, self.initial)
        self.differences, self.shown = probes.differences, probes.shown
        self.loop.note = "; ".join(self.differences)

    def _initial(self) -> Initial:
        """The initial parameters, buffers and optimizer state, on the CPU; also sets `moments`."""
        flat, lasting = self.flat, self.setup.optimizer_state != "fresh"
        x, buffers = flat.params.to("cpu", copy=True), flat.read_buffers().cpu()
        self.moments = moments_of(flat) if lasting and self.setup.optimizer == "module" else None
        self.attributes.restore()
        moments = x.new_zeros(self.local_optimizer().width(flat.width) if lasting else 0)
        return Initial(x, buffers, moments)

    def _source(self, samples: SampleSet, channels_last: bool) -> BatchSource:
        return BatchSource(samples, self.device, self.setup.torch_dtype, channels_last)

    # -- local work ------------------------------------------------------------------------------------------

    def attempt(
        self,
        task: Task,
        broadcast: State,
        client_states: ClientStates,
        timeout: float | None = None,
        failure: Exception | None = None,
    ) -> TaskResult:
        """Runs a task, and repeats it `runtime.client_retries` times at most if it fails; the last result.

        timeout: the time limit of an attempt in seconds; None: no limit. failure: the error in which the first attempt
        has ended already; None: it has not begun.
        """
        for _ in range(1 + self.setup.runtime.client_retries):
            try:
                with time_limit(timeout):
                    result = self.run(task, broadcast, client_states, failure)
            except TimeoutError as error:  # raised where the worker does not handle it
                result = TaskResult(ClientReports.failed(task.clients, str(error)))
            if not result.failed:
                break
            failure = None
        return result

    def begin(self, task: Task, broadcast: State, client_states: ClientStates) -> Deferred[TaskResult]:
        """`attempt` whose first attempt is launched at once, and awaited with the deferred result.

        The caller must have torch's default settings.
        """
        launched: Deferred[TaskResult] | None = None
        failure: Exception | None = None
        try:
            if len(task.clients) <= self.most_clients:
                with private_randomness():
                    launched = self._launch(task, broadcast, client_states)
        except Exception as error:
            failure = error

        def result() -> TaskResult:
            nonlocal launched, failure
            try:
                if launched is not None:
                    return launched.result()
            except Exception as error:
                launched, failure = None, error  # frees the uploads
            with private_randomness():
                return self.attempt(task, broadcast, client_states, failure=failure)

        return Deferred(result)

    @torch_defaults()
    def run(
        self, task: Task, broadcast: State, client_states: ClientStates, failure: Exception | None = None
    ) -> TaskResult:
        """Runs a task; returns its uploads as rows, and one new state per client.

        client_states: None for a client without a state so far. Exceptions except BadConfig become errors in the
        reports. If a call of several clients fails, its two halves are tried separately, down to single clients,
        because the cause may be a single client or a lack of memory. The global random generators are left seeded; a
        caller in the same process must restore them. failure: as in `attempt`.
        """
        if len(task.clients) <= self.most_clients:
            try:
                if failure is not None:
                    raise failure
                return self._launch(task, broadcast, client_states).result()
            except Diverged as diverged:
                raise diverged.at(task.prefix) from None
            except (BadConfig, RanksLost):
                raise
            except Exception as error:
                text, of_step = traceback_text(error), not isinstance(error, torch.OutOfMemoryError | TimeoutError)
                if isinstance(error, torch.OutOfMemoryError):
                    text += self._out_of_memory()
                    self.most_clients = max(1, len(task.clients) // 2)
                    traceback.clear_frames(error.__traceback__)  # they hold tensors
                    self.free_memory()
            if len(task.clients) == 1:
                if of_step and isinstance(self.forms.of(task), VectorizedOracle):
                    self._refuse_vmap(task, broadcast, client_states, text)
                return TaskResult(ClientReports.failed(task.clients, text))
        return self._in_halves(task, broadcast, client_states)

    def _refuse_vmap(self, task: Task, broadcast: State, client_states: ClientStates, text: str) -> None:
        """Raises Diverged if a client's vectorised steps fail again, and its reference steps do not.

        text: of the first error, whose cause may also be transient, the client's data, or the user's code.
        """

        def fails(alone: LoopOracle | None = None) -> bool:
            try:
                self._launch(task, broadcast, client_states, alone).result()
            except Exception:
                return True
            return False

        if fails() and not fails(self.loop):
            name, reason = type(self.flat.module).__name__, text.strip().splitlines()[-1]
            text = f"{name}.training_step fails in a vectorised call, but not by itself: {reason}"
            raise Diverged(text, "runtime.vectorize=never", task.prefix)

    def _in_halves(self, task: Task, broadcast: State, client_states: ClientStates) -> TaskResult:
        """The joined result of `run` for the two halves of a task, with uploads on the host."""
        middle, halves = len(task.clients) // 2, []
        for part in (slice(0, middle), slice(middle, None)):
            if isinstance(client_states, dict):
                states: ClientStates = {name: rows[part] for name, rows in client_states.items()}
            else:
                states = client_states[part]
            result = self.run(replace(task[part], sums=None), broadcast, states)
            result.uploads = all_to_host(result.uploads)  # the memory may not hold those of all clients
            halves.append(result)
        return TaskResult.joined(halves)

    def free_memory(self) -> None:
        """Frees the GPU memory of local steps and their graphs, of objects without references, and torch's cache."""
        self.forms.forget_lanes()
        gc.collect()
        torch.cuda.empty_cache()

    def _out_of_memory(self) -> str:
        """Explains an out-of-memory error, with the peak of GPU memory."""
        peak = total = math.nan
        if self.device.type == "cuda":
            peak, total = torch.cuda.max_memory_allocated(self.device), torch.cuda.mem_get_info(self.device)[1]
        return (
            f"GPU out of memory: this worker's peak was {peak / 2**30:.2f} of {total / 2**30:.2f} GiB (lower "
            "local.batch_size, or raise runtime.gpus_per_worker so that fewer workers share a GPU)\n"
        )

    @exits_as_errors()
    def _launch(
        self, task: Task, broadcast: State, client_states: ClientStates, alone: LoopOracle | None = None
    ) -> Deferred[TaskResult]:
        """Starts the work of a task; only the deferred result waits for the device. alone: computes all gradients."""
        seed_everything(keyed_int(self.setup.seed, "user", task.round, *task.clients[:1]))
        if self.device.type != "cpu" and broadcast is not self._broadcast[0]:  # copied once for all tasks
            self._broadcast = broadcast, {k: to_device(v, self.device) for k, v in broadcast.items()}
        broadcast = dict(broadcast if self.device.type == "cpu" else self._broadcast[1])
        buffers = broadcast.pop(BUFFERS, self._initial_buffers)
        states, oracle = self._states(client_states), alone or self.forms.of(task)
        rows = states.pop(BUFFERS, buffers.expand(len(task.clients), -1))
        oracle.write_buffers(rows)
        moments = states.pop(MOMENTS, broadcast.pop(MOMENTS, None))
        self.flat.module.train()
        self.attributes.restore()
        oracles = {self.loop, oracle}
        for each in oracles:
            each.ways.clear()
        result, logged = self._solve(task, oracle, broadcast, states, moments)
        ways = sum((each.ways for each in oracles), Counter[GradientMode]())
        self.unchanged.check(task.round)
        if rows.shape[1]:
            target = result.client_state if self.setup.local_buffers else result.uploads
            target[BUFFERS] = oracle.read_buffers()
        if moments is not None:
            target = result.client_state if self.setup.optimizer_state == "kept" else result.uploads
            target[MOMENTS] = result.moments
        uploads = result.uploads
        has_update = self.algorithm.uploads_update and "update" in uploads
        norms = block_norms(uploads["update"]) if has_update else None
        plan, sums = task.sums, list[SubtreeSums]()
        if plan is not None and (self.forms.room is not None or self.forms.computes_alone):
            # now: the next task may need the memory of the uploads
            sums = plan.parts(task.clients, [uploads], stay=True)
        return Deferred(lambda: self._result(task, rows, result, norms, sums, logged.result(), ways))

    def _result(
        self,
        task: Task,
        buffers: Tensor,
        result: LocalResult,
        norms: Tensor | None,
        sums: list[SubtreeSums],
        logged: dict[str, Floats],
        ways: Counter[GradientMode],
    ) -> TaskResult:
        """The result of a task, after a wait for the device.

        buffers: the module's buffers before the local work, rows [C, b]. norms: of the updates, by `block_norms`. sums:
        of the uploads, if the device has added them up.
        """
        uploads, tally, plan = result.uploads, result.tally, task.sums
        squares = None if norms is None else from_blocks(norms)
        reports = ClientReports.of(
            task.clients,
            loss=tally.losses,
            last_loss=tally.last_losses,
            gradients=tally.gradients,
            square=0.0 if squares is None else squares,
        )
        reasons = not_finite(self.flat, buffers, result, squares)
        reports.reasons = {task.clients[k]: reason for k, reason in reasons.items()}
        reports.logged = logged if tally.drift is None else logged | {LOCAL_DRIFT: tally.drift}
        reports.ways = ways
        # the worker adds up the uploads that the plan replaces
        uploads |= all_to_host({k: rows for k, rows in uploads.items() if plan is None or not plan.replaces(k)})
        if plan is not None and sums:
            uploads = without_rows(uploads, plan)
        states = all_to_host(result.client_state)
        rows_of = range(len(task.clients)) if states else ()
        return TaskResult(reports, uploads, [{n: v[k : k + 1] for n, v in states.items()} for k in rows_of], sums)

    def _states(self, client_states: ClientStates) -> State:
        if not isinstance(client_states, dict):
            fresh = self.setup.fresh_state(self.initial)
            client_states = {name: torch.cat([(state or fresh)[name] for state in client_states]) for name in fresh}
        return {name: to_device(rows, self.device) for name, rows in client_states.items()}

    def _solve(
        self,
        task: Task,
        oracle: LoopOracle | CohortOracle,
        broadcast: State,
        states: State,
        moments: Tensor | None,
    ) -> tuple[LocalResult, Deferred[dict[str, Floats]]]:
        """The result of a task's local steps, and the values that the module logs in them (`TrainingLog.results`)."""
        setup, owned = self.setup, len(self.setup.trained_on(task.clients[0]))
        per_epoch = max(1, -(-owned // max(1, task.batch_sizes[0] * setup.accumulate)))
        if setup.merged:
            local_work = merged_work(setup, task, oracle, self.train, self.measures)
        else:
            local_work = cohort_work(setup, task, oracle, self.train)
        optimizer = self.local_optimizer(per_epoch)

        def seeds(t: int, row: int) -> int:
            return keyed_int(setup.seed, "module", task.round, task.clients[row], t)

        with LocalObserver(self.training, len(task.clients), optimizer, task.steps[0], per_epoch) as observer:
            local_work = local_work.accumulated(setup.accumulate, observer.after_batch)
            result = run_local(
                self.algorithm,
                local_work.oracle,
                local_work.batches,
                seeds,
                broadcast,
                states,
                local_work.work,
                self.rule,
                local_work.full,
                optimizer,
                moments,
                observer,
                setup.drift,
            )
            return result, observer.log.results()

    def local_optimizer(self, steps_per_epoch: int = 1) -> LocalOptimizer:
        """The local optimizer of a client; if `local.optimizer` is `module`, a new one from the module.

        An algorithm that defines the local step itself (`own_step`) never gets the module's optimizer.
        steps_per_epoch: local steps in one pass over the client's data, for the module's schedulers.
        """
        if self.setup.optimizer != "module" or self.algorithm.own_step:
            return self.setup.inner
        return ModuleOptimizer(self.flat, steps_per_epoch, self.moments)

    # -- measurements ----------------------------------------------------------------------------------------

    def evaluate(self, broadcast: State, chunks: Sequence[Chunk]) -> list[Logged]:
        """Evaluates the broadcast model; returns the values that the module logs over each chunk."""
        self.forms.doubt()
        return self.measures.evaluate(broadcast, chunks)

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's state_dict at these parameters [d] and buffers [b]."""
        self.measures.load({"x": x, BUFFERS: buffers})
        return self.flat.state_dict()
