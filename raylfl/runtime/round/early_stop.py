"""Early stopping: the rule of the config group `stop` that ends a run before its last round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raylfl.config.groups.records import StopConfig
from raylfl.diagnostics.metric_names import Better, higher_is_better
from raylfl.errors import BadValue, did_you_mean

LATE = ("train", "update", "participants", "algo", "inconsistency")  # metric groups that a round may lack


class EarlyStop:
    """The rule that ends a run early: once a metric reaches its target, or has not improved for some rounds.

    The config group `stop` has the metric, the target and the number of rounds (`patience`). reason: why the run ends
    after the newest round; None while it continues. round: the round with the best value so far, -1 without a value.
    directions: the better directions of metrics (`direction`).
    """

    def __init__(self, config: StopConfig, directions: Mapping[str, Better] | None = None):
        """Raises BadValue if it is neither known nor stated whether the metric is better high or low."""
        self.config, self.metric = config, config.metric
        self.reason: str | None = None
        self._best, self.round = math.nan, -1  # no value yet
        higher = config.mode == "max"
        if config.metric is not None and config.mode == "auto":
            higher = higher_is_better(config.metric, directions, "stop.metric")
        self._sign = 1.0 if higher else -1.0

    def update(self, metrics: dict[str, Any]) -> None:
        """Takes the metrics of a finished round into account; sets `reason` if the run must end.

        Raises BadConfig if the run does not measure `stop.metric` (`require_recorded`).
        """
        metric, r = self.metric, int(metrics["round"])
        if metric is None:
            return
        value = metrics.get(metric)
        if value is None:
            require_recorded("stop.metric", metric, metrics)
            return
        if self.round < 0 or self._sign * value > self._best:
            self._best, self.round = self._sign * value, r
        target, patience = self.config.target, self.config.patience
        if target is not None and self._sign * value >= self._sign * target:
            self.reason = f"{metric} = {value:.6g} reached stop.target = {target:g}"
        elif patience is not None and r - self.round >= patience:
            best = self._sign * self._best
            self.reason = f"{metric} has not improved on {best:.6g} of round {self.round} for {patience} rounds"


class BestRound:
    """The round with the best value of a metric so far; the first one if several are equal.

    metric: None: no round is the best. directions: as in `EarlyStop`. Raises BadValue if it is neither known nor stated
    whether the metric is better high or low.
    """

    def __init__(self, metric: str | None, directions: Mapping[str, Better]):
        self.metric, self.round, self.value = metric, -1, math.nan
        self._higher = metric is not None and higher_is_better(metric, directions, "checkpoint.best")

    def update(self, metrics: dict[str, Any]) -> bool:
        """Takes a finished round into account; returns whether it is the best one so far.

        Raises BadConfig if the run does not measure the metric (`require_recorded`).
        """
        if self.metric is None:
            return False
        value = metrics.get(self.metric)
        if value is None:
            require_recorded("checkpoint.best", self.metric, metrics)
            return False
        better = math.isnan(self.value) or (value > self.value if self._higher else value < self.value)
        if better:
            self.round, self.value = int(metrics["round"]), float(value)
        return better


def require_recorded(key: str, metric: str, metrics: dict[str, Any]) -> None:
    """Raises BadConfig if `metrics` are those of round 0 and lack `metric`; no effect in later rounds.

    Metrics of the groups `LATE` may be missing in round 0. An `algo/...` metric still raises if its name is nearly that
    of a recorded metric, because it is probably misspelt. key: the config key that names the metric.
    """
    if metric in metrics or metrics["round"] != 0:
        return
    names = [name for name, value in metrics.items() if name != "round" and isinstance(value, (int, float))]
    hint, group = did_you_mean(metric, names, cutoff=0.85), metric.partition("/")[0]
    if group in LATE and not (hint and group == "algo"):
        return
    raise BadValue(key, got=metric, need=f"one that is recorded: {', '.join(names)}", hint=hint)
