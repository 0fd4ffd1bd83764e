"""A worker: a module, a local solver and the shards of all clients, as a plain class that an actor wraps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raylfl.core.algorithm import State
from raylfl.core.arrays import Floats
from raylfl.core.batchnorm import allow_single_samples
from raylfl.core.flat import FlatModule
from raylfl.core.innermost.steps import InnermostSteps
from raylfl.core.keyed import keyed_int
from raylfl.core.local import LocalResult, Observer, run_local
from raylfl.core.local_optimizer import LocalOptimizer
from raylfl.core.oracle import GradientMode, LoopOracle, seed_everything
from raylfl.core.reduce import finite_rows, square_norms
from raylfl.core.samples import BatchSource, SampleSet
from raylfl.core.torch_state import torch_defaults
from raylfl.core.vectorized import VectorizedOracle
from raylfl.errors import BadConfig, exits_as_errors, traceback_text
from raylfl.parts import BUFFERS, MOMENTS, Initial, WorkerSetup
from raylfl.runtime.workers.attributes import Attributes
from raylfl.runtime.workers.evaluate import Evaluator, Recorder
from raylfl.runtime.workers.full_gradients import FullGradients
from raylfl.runtime.workers.local_work import cohort_work, merged_work
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.measures import ModelMeasures
from raylfl.runtime.workers.module import devices, layout_for, make_module
from raylfl.runtime.workers.optimizer import ModuleOptimizer, moments_of
from raylfl.runtime.workers.step_trials import StepTrials, innermost_step
from raylfl.runtime.workers.task import LOCAL_DRIFT, Chunk, ClientReports, Rows, Task, joined_rows
from raylfl.runtime.workers.training import Training


class Worker:
    """Carries out local work and evaluations in this process.

    The result of a task depends on the task, the broadcast and the client states only: any worker can repeat it.
    """

    def __init__(self, setup: WorkerSetup):
        self.setup = setup
        self.algorithm = setup.algorithm
        self.device, autocast = devices(setup)
        module = make_module(setup.model, setup.seed)
        allow_single_samples(module)
        self.recorder = Recorder()
        self.recorder.attach(module)
        steps = InnermostSteps(module)
        self.layout = layout_for(module, self.device, setup, lambda: innermost_step(steps, setup, self.recorder))
        self.flat = FlatModule(module, setup.torch_dtype, self.device, self.layout == "channels_last")
        self._parts, self._modes = list(module.modules()), list[bool]()
        self.evaluator = Evaluator(module, self.recorder)
        self.whole = frozenset(kind for kind in ("test", "val", "train") if self.evaluator.whole(kind))
        self.training = Training(self.flat, self.recorder, setup.rule.clip_norm)
        self.rule = replace(setup.rule, clip_norm=None) if self.training.gradients.clips else setup.rule
        self.attributes = Attributes(module)
        self.initial = self._initial()
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
        full = FullGradients(self.loop, self.measured, setup.shards, self.recorder, setup.eval_batch_size)
        self.measures = ModelMeasures(setup, self.evaluator, self.attributes, self.sources, full)
        trials = StepTrials(setup, self.loop, self.train, self.training, self.attributes, self.recorder)
        self.cut = trials.cut()
        self.training_step_only = trials.training_step_only()
        if self.training_step_only:
            self.loop.through_training_step(self.training_step_only, logs=self.training.reason is None)
        if setup.runtime.compile is not None:
            self.loop.compile(setup.runtime.compile)
        if setup.runtime.graphs == "never":
            self.loop.steps.captures = None
        by_hand = self.training_step_only is None
        self.one_by_one = trials.one_by_one(by_hand)
        self.most_clients = math.inf  # largest number in one call; lowered if a GPU's memory does not suffice
        self._broadcast: tuple[State, State] = {}, {}  # the newest broadcast, on the host and on the device
        self.oracle: LoopOracle | VectorizedOracle = self.loop if self.one_by_one else trials.vectorized(by_hand)

    def _initial(self) -> Initial:
        """The initial parameters, buffers and optimizer state, on the CPU; also sets `moments`."""
        flat, lasting = self.flat, self.setup.optimizer_state != "fresh"
        x, buffers = flat.params.to("cpu", copy=True), flat.read_buffers().cpu()
        self.moments = moments_of(flat) if lasting and self.setup.optimizer == "module" else None
        self.attributes.restore()
        return Initial(x, buffers, x.new_zeros(self.local_optimizer().width(flat.width) if lasting else 0))

    def _source(self, samples: SampleSet, channels_last: bool) -> BatchSource:
        return BatchSource(samples, self.device, self.setup.torch_dtype, channels_last)

    # -- local work ------------------------------------------------------------------------------------------

    @torch_defaults()
    def run(
        self, task: Task, broadcast: State, client_states: Sequence[State | None]
    ) -> tuple[ClientReports, State, list[State]]:
        """Carries out a task; returns (reports, uploads [C, ...] by name, one new state per client).

        client_states: None for a client without a state so far. Exceptions except BadConfig become errors in the
        reports; uploads and states are empty if all clients fail. If a call of several clients fails, its two halves
        are tried separately, down to single clients, because the cause may be a single client or a lack of memory. The
        global random generators are left seeded; a caller in the same process must restore them.
        """
        if len(task.clients) <= self.most_clients:
            try:
                seed_everything(keyed_int(self.setup.seed, "user", task.round, *task.clients[:1]))
                with exits_as_errors():
                    return self._run(task, broadcast, client_states)
            except BadConfig:
                raise
            except Exception as failure:
                error = traceback_text(failure)
                if isinstance(failure, torch.OutOfMemoryError):
                    error += self._out_of_memory()
                    self.most_clients = max(1, len(task.clients) // 2)
            if len(task.clients) == 1:
                return ClientReports.failed(task.clients, error), {}, []
        return self._in_halves(task, broadcast, client_states)

    def _in_halves(
        self, task: Task, broadcast: State, client_states: Sequence[State | None]
    ) -> tuple[ClientReports, State, list[State]]:
        """The joined result of `run` for the two halves of a task.

        A failed client has zeros in its row of each upload, and an empty state.
        """
        middle, reports, ups, new = len(task.clients) // 2, [], [], []
        for part in (slice(0, middle), slice(middle, None)):
            half = replace(
                task,
                clients=task.clients[part],
                steps=task.steps[part],
                batch_sizes=task.batch_sizes[part],
                a_norm=task.a_norm[part],
            )
            theirs, uploads, states = self.run(half, broadcast, client_states[part])
            reports.append(theirs)
            ups.append((uploads, len(half.clients)))
            new += states or [{} for _ in half.clients]
        return ClientReports.joined(reports), joined_rows(ups), new if any(new) else []

    def _out_of_memory(self) -> str:
        """Explains an out-of-memory error, with the peak of GPU memory; also empties torch's cache of GPU memory."""
        torch.cuda.empty_cache()
        gib = 2**30
        peak = torch.cuda.max_memory_allocated(self.device) / gib if self.device.type == "cuda" else float("nan")
        total = torch.cuda.mem_get_info(self.device)[1] / gib if self.device.type == "cuda" else float("nan")
        return (
            f"GPU out of memory: this worker's peak was {peak:.2f} of {total:.2f} GiB (lower local.batch_size, "
            "or raise runtime.gpus_per_worker so that fewer workers share a GPU)\n"
        )

    def _run(
        self, task: Task, broadcast: State, client_states: Sequence[State | None]
    ) -> tuple[ClientReports, State, list[State]]:
        broadcast = self._received(broadcast)
        buffers = broadcast.pop(BUFFERS, None)
        states = self._states(client_states)
        rows = states.pop(BUFFERS, None if buffers is None else buffers.expand(len(task.clients), -1))
        if rows is not None:
            self.oracle.write_buffers(rows)
        moments = states.pop(MOMENTS, broadcast.pop(MOMENTS, None))
        self._to_training()
        self.attributes.restore()
        per_epoch = self._steps_per_epoch(task)
        oracles = {self.loop, self.oracle}
        for oracle in oracles:
            oracle.ways.clear()
            oracle.steps.begin()
        optimizer = self.local_optimizer(per_epoch)
        with self.training.observed(optimizer, len(task.clients), task.steps[0], per_epoch) as observer:
            result = self._solve(task, broadcast, states, observer, optimizer, moments)
            logged = observer.log.results()
        if rows is not None:
            target = result.client_state if self.setup.local_buffers else result.uploads
            target[BUFFERS] = self.oracle.read_buffers()
        if moments is not None:
            target = result.client_state if self.setup.optimizer_state == "kept" else result.uploads
            target[MOMENTS] = result.moments
        uploads = {k: v.cpu() for k, v in result.uploads.items()}
        squares = square_norms(uploads["update"]) if self.algorithm.uploads_update and "update" in uploads else None
        reports = ClientReports.of(
            task.clients,
            loss=result.losses,
            last_loss=result.last_losses,
            gradients=result.gradients,
            square=0.0 if squares is None else squares,
            finite=self._finite_rows(result, squares),
        )
        reports.logged = logged if result.drift is None else logged | {LOCAL_DRIFT: result.drift}
        reports.ways = sum((oracle.ways for oracle in oracles), Counter[GradientMode]())
        own_rows = {k: v.cpu() for k, v in result.client_state.items()}
        new_own = [{k: v[c : c + 1] for k, v in own_rows.items()} for c in range(len(task.clients))] if own_rows else []
        return reports, uploads, new_own

    def _steps_per_epoch(self, task: Task) -> int:
        """The number of local steps in one pass over the data of the task's first client."""
        client, batch_size = task.clients[0], task.batch_sizes[0]
        count = len(self.setup.trained_on(client))
        return max(1, -(-count // batch_size)) if batch_size > 0 else 1

    def _to_training(self) -> None:
        """Sets training mode like the module's `train()`, but faster."""
        if [m.training for m in self._parts] != self._modes:
            self.flat.module.train()
            self._modes = [m.training for m in self._parts]

    def _received(self, broadcast: State) -> State:
        """The broadcast on the worker's device, copied once for all tasks that start from it."""
        if self.device.type == "cpu":
            return dict(broadcast)
        if broadcast is not self._broadcast[0]:
            self._broadcast = broadcast, {k: v.to(self.device) for k, v in broadcast.items()}
        return dict(self._broadcast[1])

    def _states(self, client_states: Sequence[State | None]) -> State:
        if isinstance(client_states, Rows):
            return {name: rows.to(self.device) for name, rows in client_states.state.items()}
        fresh = self.setup.fresh_state(self.initial)
        names = fresh or client_states[0] or {}  # tasks of nodes on a graph always come with their rows
        return {name: torch.cat([(state or fresh)[name] for state in client_states]).to(self.device) for name in names}

    def _finite_rows(self, result: LocalResult, squares: Floats | None) -> np.ndarray:
        """The mask of clients with finite losses and uploads, bool [C]; a client without local steps needs no loss.

        squares: |U_i|^2 of the clients' updates U_i [C], None if there are no updates. U_i is finite if |U_i|^2 is.
        """
        good: np.ndarray = np.isfinite(result.losses) | np.isnan(result.last_losses) & (result.gradients == 0)
        for name, rows in result.uploads.items():
            if name == "update" and squares is not None and np.isfinite(squares).all():
                continue
            good &= finite_rows(rows).cpu().numpy()
        return good

    def _solve(
        self,
        task: Task,
        broadcast: State,
        states: State,
        observer: Observer,
        optimizer: LocalOptimizer,
        moments: Tensor | None,
    ) -> LocalResult:
        setup = self.setup
        if setup.merged:
            own = merged_work(setup, task, self.oracle, self.train, self.measures.full)
        else:
            own = cohort_work(setup, task, self.oracle, self.train)

        def seeds(t: int, row: int) -> int:
            return keyed_int(setup.seed, "module", task.round, task.clients[row], t)

        return run_local(
            self.algorithm,
            own.oracle,
            own.batches,
            seeds,
            broadcast,
            states,
            own.work,
            self.rule,
            own.full,
            optimizer,
            moments,
            observer,
            setup.drift,
        )

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
        for oracle in (self.loop, self.oracle):
            oracle.steps.doubt()
        return self.measures.evaluate(broadcast, chunks)

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's state_dict at these parameters [d] and buffers [b]."""
        self.measures.load({"x": x, BUFFERS: buffers})
        return {k: v.detach().cpu().clone() for k, v in self.flat.module.state_dict().items()}
