"""Local work as Lightning's training: its hooks and logged values.

Hooks between a gradient and the optimizer's step can read and change `.grad` of the parameters. They are called in
Lightning's order: `on_after_backward`, `on_before_optimizer_step`, `configure_gradient_clipping`. The option
`local.clip_norm` corresponds to Lightning's `Trainer(gradient_clip_val=...)`. If a module overrides
`configure_gradient_clipping`, this hook receives `local.clip_norm` as `gradient_clip_val` and clips the gradients; the
local solver then does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from raylfl.core.arrays import Floats
from raylfl.core.deferred import Deferred
from raylfl.core.flat import FlatModule
from raylfl.core.local_optimizer import LocalOptimizer
from raylfl.core.local_step import Observer
from raylfl.core.oracle import Batch
from raylfl.errors import BadConfig
from raylfl.replay.step_log import StepLog
from raylfl.runtime.workers.evaluate import Recorder
from raylfl.runtime.workers.hooks import LOCAL_WORK, overrides_hook, takes_only_a_batch
from raylfl.runtime.workers.logged import as_number, canonical, is_metric, not_a_number, reduction, value_of
from raylfl.runtime.workers.optimizer import ModuleOptimizer

ON_GRADIENTS = {"on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping"}

REDUCE: dict[str, Callable[..., Any]] = {"mean": np.mean, "sum": np.sum, "min": np.min, "max": np.max}


class TrainingLog:
    """Collects the values that some clients' local steps log, and reduces them over the steps of each client.

    step: receives the values of the current local step; clients: the number of clients. A logged loss is ignored,
    because `train/loss` is the mean of the losses that training_step returns.
    """

    def __init__(self, step: StepLog, clients: int):
        self.step, self.clients = step, clients
        self._reduce: dict[str, str] = {}
        self._steps: list[tuple[Sequence[int], dict[str, Tensor]]] = []
        self.objects: dict[str, Any] = {}  # metric objects of a single client
        self.given: dict[str, dict[str, None]] = {}  # metric -> the names by which the module logs it

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Adds one value; options as in `LightningModule.log`."""
        if isinstance(value, Tensor):
            value = value.detach().clone()  # a parameter or buffer may change before the value is read
        self.step.note(name, value, options)
        given, name = name, canonical(name)
        if name == "loss":
            return
        self.given.setdefault(name, {})[given] = None
        if is_metric(value):
            self.objects[name] = value
            return
        self._reduce.setdefault(name, reduction(name, options))
        if not isinstance(value, Tensor):
            value = torch.tensor(as_number(name, value))
        elif value.numel() != 1:
            raise not_a_number(name, value)
        value = value.reshape(())
        self.step.values[name] = value if value.is_floating_point() else value.float()
        self.step.options[name] = options

    def keep(self, rows: Sequence[int]) -> None:
        """Stores the values of the current local step.

        rows: the positions in the task of the clients that took the step.
        """
        if self.step.values:
            self._steps.append((list(rows), self.step.take()))

    def results(self) -> Deferred[dict[str, Floats]]:
        """Name -> one number per client, float64 [C], nan for a client that did not log it; resets metric objects.

        The deferred result waits for the device.
        """
        numbers: dict[str, tuple[Tensor, np.ndarray]] = {}  # the values of all steps, and the clients that logged them
        for name in self._reduce:
            steps = [(rows, values[name]) for rows, values in self._steps if name in values]
            if steps:
                values = torch.cat([value.reshape(-1).double() for _, value in steps])
                numbers[name] = values, np.concatenate([rows for rows, _ in steps])
        of_objects = {name: as_number(name, value_of(metric)) for name, metric in self.objects.items()}
        for metric in self.objects.values():
            metric.reset()

        def reduced() -> dict[str, Floats]:
            of_clients = {name: np.full(self.clients, np.nan) for name in dict.fromkeys([*self._reduce, *self.objects])}
            for name, (values, owners) in numbers.items():
                on_host = values.cpu().numpy()
                for client in np.unique(owners):
                    of_clients[name][client] = REDUCE[self._reduce[name]](on_host[owners == client])
            for name, value in of_objects.items():
                of_clients[name][0] = value
            return of_clients

        return Deferred(reduced)


class Training:
    """The training hooks and logged values of a worker's module in local work.

    If necessary, the module's `training_step` is wrapped: for hooks, which receive what it returns, and for a step that
    takes no batch_idx. The module's `clip_gradients` is replaced.
    """

    def __init__(self, flat: FlatModule, recorder: Recorder, clip_norm: float | None, accumulate: int = 1):
        """The training of the module of `flat`; raises BadConfig for hooks that accumulated gradients do not call.

        recorder: receives what the module logs. clip_norm, accumulate: the options of `local`.
        """
        module: Any = flat.module
        self.flat, self.recorder, self.clip_norm = flat, recorder, clip_norm
        self.log = StepLog()
        self.hooks = {name: getattr(module, name) for name in LOCAL_WORK if overrides_hook(module, name)}
        of_batches = [
            name for name in ("on_train_batch_start", "on_after_backward", "on_train_batch_end") if name in self.hooks
        ]
        if accumulate > 1 and of_batches:
            raise BadConfig(
                f"local.accumulate={accumulate}, but must be 1: {type(module).__name__} has {of_batches[0]}, which "
                "local work calls for a step, not for each of its batches"
            )
        module.clip_gradients = self.clip_gradients
        self.returned: Any = None  # the last result of training_step, for on_train_batch_end
        if self.hooks or takes_only_a_batch(module, "training_step"):
            module.training_step = self._adapted(module.training_step)

    def _adapted(self, own: Callable[..., Any]) -> Callable[..., Any]:
        alone = takes_only_a_batch(self.flat.module, "training_step")

        def training_step(batch: Any, batch_idx: int = 0) -> Any:
            self.returned = own(batch) if alone else own(batch, batch_idx)
            return self.returned

        return training_step

    def clip_gradients(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clips gradients like `LightningModule.clip_gradients`, which it replaces because a Trainer is missing.

        gradient_clip_val: None stands for `local.clip_norm`; if both are None, nothing is clipped.
        gradient_clip_algorithm: norm (default) or value. Raises BadConfig if `local.clip_norm` is set and the arguments
        ask for other clipping than by this norm.
        """
        from lightning.pytorch.plugins.precision import Precision
        from lightning.pytorch.utilities import GradClipAlgorithmType

        value = self.clip_norm if gradient_clip_val is None else gradient_clip_val
        how = GradClipAlgorithmType((gradient_clip_algorithm or "norm").lower())
        if self.clip_norm is not None and (value, how) != (self.clip_norm, GradClipAlgorithmType.NORM):
            raise BadConfig(
                f"local.clip_norm={self.clip_norm}, but {type(self.flat.module).__name__} calls clip_gradients("
                f"gradient_clip_val={value}, gradient_clip_algorithm={how.value!r}): use one of the two"
            )
        Precision().clip_gradients(optimizer, value or 0.0, how)

    @property
    def reason(self) -> str | None:
        """The reason why clients run one by one, and why every local step calls `training_step`; None if there is none.

        The reasons are hooks and a sharded module. It continues a sentence that begins with `training_step`.
        """
        if self.flat.processes > 1:
            return f"is sharded over {self.flat.processes} processes"
        return f"has {next(iter(self.hooks))} beside it" if self.hooks else None


class LocalObserver(Observer):
    """An observer of the local solver, which calls the module's hooks and stores the logged values of each step.

    It collects values as a context. A module with hooks runs one client at a time.
    """

    def __init__(self, training: Training, clients: int, optimizer: LocalOptimizer, steps: int, steps_per_epoch: int):
        """An observer of the local work of `clients` clients; the other arguments serve hooks only.

        optimizer: the client's local optimizer; steps: the client's number of local steps K_i; steps_per_epoch: local
        steps in one pass over the client's data.
        """
        self.training, self.log, self.optimizer = training, TrainingLog(training.log, clients), optimizer
        self.steps, self.steps_per_epoch = steps, steps_per_epoch
        self.between_steps = bool(training.hooks)
        self._batch: Any = None

    def __enter__(self) -> LocalObserver:
        training = self.training
        training.log.take()
        training.log.sink = self.log.log
        self._outer, training.recorder.target = training.recorder.target, self.log
        return self

    def __exit__(self, *error: object) -> None:
        self.training.recorder.target = self._outer
        self.training.returned = self.training.log.sink = None

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        hook = self.training.hooks.get(name)
        if hook is None:
            return None
        returned = hook(*args, **options)
        self.training.flat.take_back()
        return returned

    def begin(self) -> None:
        self.log.step.take()  # drops values logged by a full gradient before the first step
        self._call("on_train_start")

    def before_step(self, t: int, batches: Sequence[Batch]) -> None:
        if not self.training.hooks:
            return
        self._batch = batches[0].content
        if t % self.steps_per_epoch == 0:
            self._call("on_train_epoch_start")
        if self._call("on_train_batch_start", self._batch, t) == -1:
            raise BadConfig(
                f"{type(self.training.flat.module).__name__}.on_train_batch_start returned -1, but local work cannot "
                "be cut short: local.steps or local.epochs says how long it is"
            )

    def after_gradient(self, g: Tensor) -> None:
        """Calls the hooks with the gradient as `.grad` of the parameters; their changes are written into g [1, d]."""
        if ON_GRADIENTS.isdisjoint(self.training.hooks):
            return
        flat, clip_norm = self.training.flat, self.training.clip_norm
        parameters, views = flat.parameters, flat.set_gradients(g[0])
        # without options, unless local steps use the module's optimizer
        shown = self.optimizer.optimizer if isinstance(self.optimizer, ModuleOptimizer) else Optimizer(parameters, {})
        self._call("on_after_backward")
        self._call("on_before_optimizer_step", shown)
        how = None if clip_norm is None else "norm"
        self._call("configure_gradient_clipping", shown, gradient_clip_val=clip_norm, gradient_clip_algorithm=how)
        flat.without_gradient = frozenset(k for k, p in enumerate(parameters) if p.grad is None)
        for p, view in zip(parameters, views, strict=True):
            if p.grad is None:
                view.zero_()
            elif p.grad is not view:  # replaced instead of changed in place
                view.copy_(p.grad)
            p.grad = None

    def after_step(self, t: int, rows: Sequence[int], losses: Tensor) -> None:
        if self.training.hooks:
            self._call("on_train_batch_end", self._outputs(losses), self._batch, t)
            if (t + 1) % self.steps_per_epoch == 0 or t + 1 == self.steps:
                self._call("on_train_epoch_end")
        self.log.keep(rows)

    def after_batch(self) -> None:
        """Stores what one of the batches of an accumulated step has logged."""
        self.log.keep([0])

    def end(self) -> None:
        if self.training.hooks:
            self._call("on_train_end")
            self.log.keep([0])

    def _outputs(self, losses: Tensor) -> dict[str, Any]:
        """The argument `outputs` of on_train_batch_end, as in Lightning: a dict with the detached loss."""
        returned, self.training.returned = self.training.returned, None
        outputs = dict(returned) if isinstance(returned, Mapping) else {}
        detached = {k: v.detach() if isinstance(v, Tensor) else v for k, v in outputs.items()}
        return {**detached, "loss": losses[0].detach()}
