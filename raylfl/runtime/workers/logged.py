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

from raylfl.diagnostics.metric_names import Better
from raylfl.errors import BadConfig

Pairs = list[tuple[float, float]]  # (value, weight) of each batch
REDUCTIONS: dict[str, Callable[[Pairs], float]] = {
    "mean": lambda pairs: _mean([(v, w) for v, w in pairs if w]),
    "sum": lambda pairs: math.fsum(v for v, _ in pairs),
    "min": lambda pairs: min(v for v, _ in pairs),
    "max": lambda pairs: max(v for v, _ in pairs),
}


def _mean(pairs: Pairs) -> float:
    """The weighted mean; nan, which is not recorded, if there are no values."""
    return sum(v * w for v, w in pairs) / sum(w for _, w in pairs) if pairs else math.nan


def canonical(name: str) -> str:
    """The name of a metric without the prefix of its stage, where `acc` becomes `accuracy`: `val_acc` -> `accuracy`."""
    name = re.sub(r"^(test|val|valid|validation|train)[/_]", "", name)
    return "accuracy" if name == "acc" else name


# -- evaluations -------------------------------------------------------------------------------------------------


@dataclass
class Series:
    """The values logged under one name, one per batch. reduce: a key of `REDUCTIONS`.

    A weight is the batch's number of samples, or the `batch_size` that the module logs. A value with weight 0 (the mean
    over a mask that is empty in this batch) does not count in a mean.
    """

    reduce: str
    pairs: Pairs = field(default_factory=list)


@dataclass
class Logged:
    """The values logged over some batches of one evaluation, which a worker sends to the server.

    series: numbers by name; metrics: torchmetrics objects by name, with their states over these batches. given: for
    each of these names, the name that the module logs.
    """

    series: dict[str, Series] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)

    def name(self, given: str) -> str:
        """The name of the metric that the module logs as `given`. Raises BadConfig if it logs it by two names."""
        name = canonical(given)
        refuse_two_names(name, self.given.setdefault(name, given), given)
        return name

    @staticmethod
    def joined(parts: Sequence[Logged]) -> Logged:
        """Joins the values of all parts of one evaluation; metric objects of the parts may be changed."""
        whole = Logged()
        for part in parts:
            for given in part.given.values():
                whole.name(given)
            for name, series in part.series.items():
                whole.series.setdefault(name, Series(series.reduce)).pairs += series.pairs
        names = dict.fromkeys(name for part in parts for name in part.metrics)
        whole.metrics = {name: merged([part.metrics[name] for part in parts if name in part.metrics]) for name in names}
        return whole

    def results(self) -> dict[str, float]:
        """One number per name; a metric object that computes a dict gives one number per key, named `name_key`."""
        found = {name: float(REDUCTIONS[series.reduce](series.pairs)) for name, series in self.series.items()}
        for name, metric in self.metrics.items():
            for key, value in _computed(name, value_of(metric)).items():
                if key in found:
                    refuse_two_names(key, f"{self.given.get(name, name)} (a metric object)", self.given.get(key, key))
                found[key] = value
        return found

    def directions(self) -> dict[str, Better]:
        """The better direction of each metric object that states it by torchmetrics' `higher_is_better`."""
        return {
            key: "max" if metric.higher_is_better else "min"
            for name, metric in self.metrics.items()
            if getattr(metric, "higher_is_better", None) is not None
            for key in _computed(name, value_of(metric))
        }


def refuse_two_names(name: str, first: str, second: str) -> None:
    """Raises BadConfig if a module logs one metric by two names; name: the metric's name, without its stage."""
    if first != second:
        raise BadConfig(f"the model logs {first} and {second}, which are both recorded as {name}: rename one of them")


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


def value_of(metric: Any) -> Any:
    """What a metric object computes from the states that it has in this process."""
    alone_in(metric)
    return metric.compute()


def alone_in(module: nn.Module) -> None:
    """Lets metric objects of the module compute without the other processes of a process group of torch."""
    for metric in metrics_of(module):
        metric.distributed_available_fn = bool  # which returns False


def merged(metrics: Sequence[Any]) -> Any:
    """Merges the states of metric objects of one kind into the first, as torchmetrics does it over processes."""
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
        self._samples = None

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Adds one value; options as in `LightningModule.log`."""
        if options.get("on_epoch") is False:
            self.left_out.add(name)
        elif is_metric(value):
            self._objects[self.logged.name(name)] = value
        else:
            self.add(self.logged.name(name), as_number(name, value), options)

    def add(self, name: str, value: float, options: Mapping[str, Any]) -> None:
        weight = options.get("batch_size")
        if self._samples is None or name not in self.logged.series:
            self.logged.series[name] = Series(reduction(name, options))
        series = self.logged.series[name]
        if name in self._in_batch and self._samples is not None:  # logged twice: the last one counts
            series.pairs.pop()
        self._in_batch.add(name)
        series.pairs.append((value, (self._samples or 1) if weight is None else weight))

    def finish(self) -> Logged:
        """The logged values, with copies of the metric objects, whose originals are reset."""
        self.logged.metrics = {name: copy.deepcopy(metric).cpu() for name, metric in self._objects.items()}
        for metric in self._objects.values():  # including metric objects that are not registered in the module
            metric.reset()
        return self.logged


def reduction(name: str, options: Mapping[str, Any]) -> str:
    """The key of `REDUCTIONS` for the option `reduce_fx`; raises BadConfig for one that Lightning does not accept."""
    given = options.get("reduce_fx", "mean")
    found = given if isinstance(given, str) else getattr(given, "__name__", str(given))
    found = {"amax": "max", "amin": "min", "avg": "mean"}.get(found, found)
    if found not in REDUCTIONS:
        raise BadConfig(f"the model logs {name} with reduce_fx={found}, but must be one of {', '.join(REDUCTIONS)}")
    return found
