"""Measuring a model on data, through the module's own evaluation step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from raylfl.core.oracle import Batch, loss_of

_PREFIXES = ("test/", "test_", "val/", "val_", "valid/", "valid_", "validation/", "validation_", "train/", "train_")


class Recorder:
    """Stands in for `LightningModule.log` and `log_dict`: keeps the values of the current call."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def attach(self, module: Any) -> None:
        module.log = self.log
        module.log_dict = self.log_dict

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if not self.silent:
            self.values[canonical(name)] = _number(value)

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value)

    silent = True  # local steps log nothing: a float() a step would stall a GPU


def canonical(name: str) -> str:
    """`val_acc`, `test/accuracy`, ... -> `accuracy`."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    return "accuracy" if name == "acc" else name


def _number(value: Any) -> float:
    if hasattr(value, "compute") and hasattr(value, "reset"):  # a torchmetrics Metric
        number = float(value.compute())
        value.reset()
        return number
    return float(value.detach() if isinstance(value, Tensor) else value)


def evaluation_step(module: Any) -> Callable[..., Any] | None:
    """`test_step` or `validation_step` where the module defines one, else None (its training loss is used)."""
    from lightning.pytorch import LightningModule

    for name in ("test_step", "validation_step"):
        if getattr(type(module), name, None) is not getattr(LightningModule, name):
            return getattr(module, name)
    return None


@torch.no_grad()
def measure(module: Any, recorder: Recorder, batch: Batch) -> dict[str, float]:
    """Mean metrics of one batch: whatever the evaluation step logs, with `loss` always among them."""
    step = evaluation_step(module)
    recorder.values, recorder.silent = {}, False
    try:
        output: Any = (step or module.training_step)(batch.content, 0)
        if "loss" not in recorder.values:
            returned = output.get("loss") if isinstance(output, dict) else output
            if returned is None:
                output = module.training_step(batch.content, 0)
            recorder.values["loss"] = float(loss_of(output, module))
        return recorder.values
    finally:
        recorder.silent = True
