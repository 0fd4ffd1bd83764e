"""Values that a module logs (`self.log`) in an evaluation, and their reduction over all batches of the evaluation.

A number is stored for each batch, with its weight. A torchmetrics object stores its own state and is computed once,
over all batches of the evaluation on all workers.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from raylfl.errors import BadConfig

REDUCTIONS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {  # functions of values and weights
    "mean": lambda values, weights: sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights),
    "sum": lambda values, weights: math.fsum(values),
    "min": lambda values, weights: min(values),
    "max": lambda values, weights: max(values),
}


def canonical(name: str) -> str:
    """The name of a metric without the prefix of its stage, where `acc` becomes `accuracy`: `val_acc` -> `accuracy`."""
    name = re.sub(r"^(test|val|valid|validation|train)[/_]", "", name)
    return "accuracy" if name == "acc" else name


# -- evaluations -------------------------------------------------------------------------------------------------


@dataclass
class Series:
    """The values logged under one name, one per batch.

    reduce: a key of `REDUCTIONS`; weights: the batches' numbers of samples, or the `batch_size` that the module logs.
    """

    reduce: str
    values: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add(self, value: float, weight: float) -> None:
        """Adds the value of one batch."""
        self.values.append(value)
        self.weights.append(weight)

    def drop_last(self) -> None:
        """Removes the value of the last batch."""
        del self.values[-1], self.weights[-1]

    @property
    def reduced(self) -> float:
        """The values reduced to one number, by default their weighted mean."""
        return float(REDUCTIONS[self.reduce](self.values, self.weights))


@dataclass
class Logged:
    """The values logged over some batches of one evaluation, which a worker sends to the server.

    series: numbers by name; metrics: torchmetrics objects by name, with their states over these batches.
    """

    series: dict[str, Series] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def joined(parts: Sequence[Logged]) -> Logged:
        """Joins the values of all parts of one evaluation; metric objects of the parts may be changed."""
        whole = Logged()
        for part in parts:
            for name, series in part.series.items():
                kept = whole.series.setdefault(name, Series(series.reduce))
                kept.values += series.values
                kept.weights += series.weights
        names = dict.fromkeys(name for part in parts for name in part.metrics)
        whole.metrics = {name: merged([part.metrics[name] for part in parts if name in part.metrics]) for name in names}
        return whole

    def results(self) -> dict[str, float]:
        """One number per name; a metric object that computes a dict gives one number per key, named `name_key`."""
        found = {name: series.reduced for name, series in self.series.items()}
        for name, metric in self.metrics.items():
            found |= _computed(name, metric.compute())
        return found


def _computed(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {key: number for k, v in value.items() for key, number in _computed(f"{name}_{k}", v).items()}
    return {name: as_number(name, value)}


def as_number(name: str, value: Any) -> float:
    """The value as a float. Raises BadConfig if it is not a single number."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach())
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise not_a_number(name, value) from None


def not_a_number(name: str, value: Any) -> BadConfig:
    """The error for a logged value that is not a single number."""
    what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    return BadConfig(
        f"the model logs {name} as {what}, but must log one number, a tensor with one entry, or a torchmetrics "
        "object that computes one (average='macro', say)"
    )


def is_metric(value: Any) -> bool:
    """Whether the value is a torchmetrics Metric, tested without importing torchmetrics."""
    return all(hasattr(value, name) for name in ("_reductions", "_defaults", "compute", "reset"))


def metrics_of(module: nn.Module) -> list[Any]:
    """All metric objects registered in the module, nested ones included."""
    return [part for part in module.modules() if is_metric(part)]


def merged(metrics: Sequence[Any]) -> Any:
    """Merges the states of several metric objects of one kind into the first, in place, and returns it.

    States are reduced as torchmetrics reduces them over processes, also in nested metrics (wrappers, sums of metrics).
    """
    if len(metrics) == 1:
        return metrics[0]
    for same in zip(*(metrics_of(metric) for metric in metrics), strict=True):
        first = same[0]
        for name, reduction in first._reductions.items():
            states = [getattr(metric, name) for metric in same]
            joined: Any = [s for state in states for s in state] if isinstance(states[0], list) else torch.stack(states)
            empty = isinstance(joined, list) and not joined
            setattr(first, name, joined if reduction is None or empty else reduction(joined))
        first._update_count = sum(metric._update_count for metric in same)
        first._computed = None
    return metrics[0]


class EvaluationLog:
    """Collects the values that a module logs in one evaluation, within batches and, from hooks, between batches."""

    def __init__(self) -> None:
        self.logged = Logged()
        self.left_out: set[str] = set()  # names logged with on_epoch=False, which have no value for the evaluation
        self._samples: int | None = None  # samples of the current batch; None between batches
        self._in_batch: set[str] = set()
        self._objects: dict[str, Any] = {}

    def begin_batch(self, samples: int) -> None:
        """Begins a batch of this many samples; values logged from now on belong to it."""
        self._samples, self._in_batch = samples, set()

    @property
    def has_loss(self) -> bool:
        """Whether the module has logged `loss` in the current batch."""
        return "loss" in self._in_batch

    def end_batch(self) -> None:
        """Ends the batch; values logged from now on belong to the whole evaluation."""
        self._samples = None

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Adds one value; options as in `LightningModule.log`."""
        if options.get("on_epoch") is False:
            self.left_out.add(name)
        elif is_metric(value):
            self._objects[canonical(name)] = value
        else:
            self._add(canonical(name), as_number(name, value), options)

    def _add(self, name: str, value: float, options: Mapping[str, Any]) -> None:
        weight = options.get("batch_size")
        if self._samples is None or name not in self.logged.series:
            self.logged.series[name] = Series(reduction(name, options))
        elif name in self._in_batch:  # logged twice: the last one counts
            self.logged.series[name].drop_last()
        self._in_batch.add(name)
        self.logged.series[name].add(value, (self._samples or 1) if weight is None else weight)

    def finish(self) -> Logged:
        """The logged values, with copies of the metric objects, whose originals are reset."""
        self.logged.metrics = {name: copy.deepcopy(metric).cpu() for name, metric in self._objects.items()}
        for metric in self._objects.values():  # including metric objects that are not registered in the module
            metric.reset()
        return self.logged


def reduction(name: str, options: Mapping[str, Any]) -> str:
    """The key of `REDUCTIONS` for the value of `reduce_fx`, one of these options of `LightningModule.log`.

    name: the logged name, for the error message. Raises BadConfig for a reduction that Lightning does not accept.
    """
    given = options.get("reduce_fx", "mean")
    found = given if isinstance(given, str) else getattr(given, "__name__", str(given))
    found = {"amax": "max", "amin": "min", "avg": "mean"}.get(found, found)
    if found not in REDUCTIONS:
        raise BadConfig(f"the model logs {name} with reduce_fx={found}, but must be one of {', '.join(REDUCTIONS)}")
    return found
