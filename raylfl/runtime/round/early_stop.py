"""Early stopping: the rule of the config group `stop` that ends a run before its last round."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from raylfl.config.groups.records import StopConfig
from raylfl.diagnostics.metric_names import Better, higher_is_better
from raylfl.errors import BadValue, did_you_mean

LATE = ("train", "update", "participants", "algo", "inconsistency")  # metric groups that a round may lack


class BestRound:
    """The round with the best value of a metric so far; the first one if several are equal.

    round, value: of the best round, -1 and nan without a value. metric: None: no round is the best. directions: the
    better directions of metrics (`direction`). key: the config key that names the metric; mode: its better direction,
    max or min, or auto. Raises BadValue if it is neither known nor stated whether the metric is better high or low.
    """

    def __init__(
        self,
        metric: str | None,
        directions: Mapping[str, Better] | None = None,
        key: str = "checkpoint.best",
        mode: Literal["auto", "min", "max"] = "auto",
    ):
        self.metric, self.key, self.round, self.value = metric, key, -1, math.nan
        self.higher = mode == "max"
        if metric is not None and mode == "auto":
            self.higher = higher_is_better(metric, directions, key)

    def update(self, metrics: dict[str, Any]) -> bool:
        """Takes a finished round into account; returns whether it is the best one so far.

        Whether other metrics than `algo/...` will be measured is known before a run. Raises BadValue for an `algo/...`
        that round 0 lacks, whose name is nearly that of one in its metrics.
        """
        if self.metric is None:
            return False
        value = metrics.get(self.metric)
        if value is None:
            names = [name for name in metrics if name.startswith("algo/")]
            first = self.metric.startswith("algo/") and metrics["round"] == 0
            if first and (hint := did_you_mean(self.metric, names, cutoff=0.85)):
                need = f"one that is recorded: {', '.join(names)}"
                raise BadValue(self.key, got=self.metric, need=need, hint=hint)
            return False
        better = math.isnan(self.value) or (value > self.value if self.higher else value < self.value)
        if better:
            self.round, self.value = int(metrics["round"]), float(value)
        return better


class EarlyStop(BestRound):
    """The rule that ends a run early: once a metric reaches its target, or has not improved for some rounds.

    The config group `stop` has the metric, the target and the number of rounds (`patience`). reason: why the run ends
    after the newest round; None while it continues.
    """

    def __init__(self, config: StopConfig, directions: Mapping[str, Better] | None = None):
        super().__init__(config.metric, directions, "stop.metric", config.mode)
        self.config = config
        self.reason: str | None = None

    def update(self, metrics: dict[str, Any]) -> bool:
        """As in `BestRound`; also sets `reason` if the run must end."""
        better, target, patience = super().update(metrics), self.config.target, self.config.patience
        if self.metric is not None and (value := metrics.get(self.metric)) is not None:
            if target is not None and (value >= target if self.higher else value <= target):
                self.reason = f"{self.metric} = {value:.6g} reached stop.target = {target:g}"
            elif patience is not None and metrics["round"] - self.round >= patience:
                best = f"{self.value:.6g} of round {self.round}"
                self.reason = f"{self.metric} has not improved on {best} for {patience} rounds"
        return better
