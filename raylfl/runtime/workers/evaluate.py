"""Evaluation of a LightningModule by its `test_step` or `validation_step` and the hooks around them."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from raylfl.core.oracle import Batch
from raylfl.core.reference import loss_of
from raylfl.runtime.workers.hooks import BATCH, WHOLE, overrides_hook, takes_only_a_batch
from raylfl.runtime.workers.logged import EvaluationLog, Logged, as_number, metrics_of


class Recorder:
    """A replacement for `LightningModule.log` and `log_dict`, which passes values to `target`; None: drops them."""

    def __init__(self) -> None:
        self.target: Any = None

    def attach(self, module: Any) -> None:
        """Redirects `log` and `log_dict` of this module to this recorder."""
        module.log, module.log_dict = self.log, self.log_dict

    @contextmanager
    def into(self, log: Any) -> Iterator[None]:
        """A context in which logged values are passed to `log`."""
        before, self.target = self.target, log
        try:
            yield
        finally:
            self.target = before

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Passes one value to the current log; called in place of `LightningModule.log`, with the same arguments."""
        if self.target is not None:
            if args:
                from lightning.pytorch import LightningModule

                names = list(inspect.signature(LightningModule.log).parameters)[3:]
                options |= zip(names, args, strict=False)
            self.target.log(name, value, **options)

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Passes several values to the current log, from a dict or a torchmetrics MetricCollection."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)


class Evaluator:
    """Evaluates a module on batches.

    The test set goes through `test_step` and its hooks, all other data through `validation_step` and its hooks. If the
    module has only one of the two steps, all data go through it; with neither, the training loss is measured.
    """

    def __init__(self, module: Any, recorder: Recorder):
        self.module, self.recorder = module, recorder
        self.left_out: set[str] = set()  # names logged with on_epoch=False

    def stage(self, kind: str) -> str | None:
        """The stage (`test` or `validation`) whose step evaluates data of this kind; None if there is no such step."""
        stages = ("test", "validation") if kind == "test" else ("validation", "test")
        return next((stage for stage in stages if overrides_hook(self.module, f"{stage}_step")), None)

    def whole(self, kind: str) -> bool:
        """Whether one worker must evaluate all data of this kind, because the module has hooks on whole evaluations."""
        return any(self._hook(kind, part) for part in WHOLE)

    def _hook(self, kind: str, part: str) -> Callable[..., Any] | None:
        stage = self.stage(kind)
        name = f"on_{stage}_{part}"
        return getattr(self.module, name) if stage and overrides_hook(self.module, name) else None

    @torch.no_grad()
    def measure(self, kind: str, batches: Iterable[Batch], first: int = 0) -> Logged:
        """Evaluates the module on these batches of a kind (test, val or train), numbered from `first`.

        Returns the logged values, with `loss`: the logged one, or else that of the step, or else the training loss.
        """
        log = EvaluationLog()
        for metric in metrics_of(self.module):
            metric.reset()
        with self.recorder.into(log):
            self._call(kind, "start", "epoch_start")
            for index, batch in enumerate(batches, first):
                log.begin_batch(batch.size)
                self._batch(kind, batch, index, log)
                log.end_batch()
            self._call(kind, "epoch_end", "end")
        self.left_out |= log.left_out
        return log.finish()

    def _call(self, kind: str, *parts: str) -> None:
        for part in parts:
            if hook := self._hook(kind, part):
                hook()

    def _batch(self, kind: str, batch: Batch, index: int, log: EvaluationLog) -> None:
        stage, before, after = self.stage(kind), *(self._hook(kind, part) for part in BATCH)
        name = f"{stage}_step" if stage else "training_step"
        step = getattr(self.module, name)
        if before:
            before(batch.content, index)
        output = step(batch.content) if takes_only_a_batch(self.module, name) else step(batch.content, index)
        if not log.has_loss:
            returned = output.get("loss") if isinstance(output, dict) else output
            if stage and not (isinstance(returned, Tensor) and returned.numel() == 1):
                with self.recorder.into(None):
                    returned = self.module.training_step(batch.fresh(), index)
            log.add("loss", as_number("loss", loss_of(returned, self.module)), {})
        if after:
            after(output, batch.content, index)
