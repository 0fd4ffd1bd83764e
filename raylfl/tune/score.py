"""Scores of runs: the mean over the last rounds, the best round, or the number of rounds to reach a target."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from raylfl.components.options import Doc, Ge, Options
from raylfl.diagnostics.metric_names import Better, check_target, direction
from raylfl.errors import BadValue
from raylfl.report.derived import final_rounds
from raylfl.report.runs import RunRecord

TIME, SCORE = "round", "score"  # keys of a trial's report to Ray Tune
WORST = 1e30  # size of the score of a diverged run; finite, because Ray Tune computes percentiles


@dataclass
class Score(Options):
    """The definition of the score of a run: a metric, its direction, and how its values are reduced to one number."""

    metric: Annotated[str, Doc("a name in `metrics.jsonl`")] = "test/accuracy"
    mode: Annotated[
        Literal["min", "max"] | None,
        Doc("whether smaller or larger values of the metric are better; null: known for losses and accuracies"),
    ] = None
    score: Annotated[
        Literal["last", "best", "target"], Doc("the mean over the last rounds, the best round, or rounds to the target")
    ] = "last"
    last: Annotated[
        int | None, Ge(1), Doc("rounds in the mean of `last`; null: a tenth of all rounds, from 1 to 100")
    ] = None
    target: Annotated[
        float | None,
        Doc("the value to reach, 0.95 for 95 %; required by score target, and allowed with no other score"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.score == "target") != (self.target is not None):
            raise BadValue("target", got=self.target, need="given if and only if score is target")
        check_target(self.target, self.metric)

    def set_mode(self, stated: Mapping[str, Better]) -> None:
        """Sets a null `mode` from `stated` or what is known. Raises BadValue if nothing is, or if the two differ."""
        better = direction(self.metric, stated)
        if self.mode is None and better is None:
            hint = f"whether smaller or larger {self.metric} is better is not known"
            raise BadValue("mode", got=None, need="min or max", hint=hint)
        if self.mode is not None and better is not None and self.mode != better and direction(self.metric) is None:
            raise BadValue("mode", got=self.mode, need=f"{better}, as metrics.{self.metric} states")
        self.mode = self.mode or better

    @property
    def direction(self) -> Literal["min", "max"]:
        """Whether smaller or larger scores are better; fewer rounds to a target are better."""
        assert self.mode is not None, "`directed` sets it"
        return "min" if self.score == "target" else self.mode

    @property
    def worst(self) -> float:
        return -WORST if self.direction == "max" else WORST

    def window(self, rounds: int) -> int:
        """The number of last rounds over which score `last` averages, in a run of `rounds` rounds."""
        return self.last or final_rounds(rounds)

    def of(self, run: RunRecord) -> float | None:
        """The run's score, in the metric's unit or in rounds; None if not measured, or the target was not reached."""
        running = RunningScore(self, int(run.config["rounds"]))
        for r, value in zip(run.rounds, run.column(self.metric), strict=True):
            running.update({"round": int(r), self.metric: float(value)})
        return running.value if self.target is None or running.reached is not None else None


class RunningScore:
    """The score that a running run of so many rounds would have if it ended now.

    Of runs that have not reached the target, the score is rounds + 1 + the distance of the best value from the target:
    behind all runs that have reached it. reached: the number of rounds to the target.
    """

    def __init__(self, score: Score, rounds: int):
        self.score, self.rounds, self.window = score, rounds, score.window(rounds)
        self.reached: int | None = None
        self._better = max if score.mode == "max" else min
        self._recent: deque[tuple[int, float]] = deque()
        self._best: float | None = None

    def update(self, metrics: Mapping[str, Any]) -> float | None:
        """The score after the next row of metrics.jsonl, `metrics`; None before the metric is first measured."""
        r, value, target = metrics["round"], metrics.get(self.score.metric), self.score.target
        if isinstance(value, (int, float)) and math.isfinite(value):
            self._recent.append((r, value))
            self._best = value if self._best is None else self._better(self._best, value)
            if target is not None and self.reached is None and self._better(value, target) == value:
                self.reached = r + 1
        while len(self._recent) > 1 and self._recent[0][0] <= r - self.window:
            self._recent.popleft()
        return self.value

    @property
    def value(self) -> float | None:
        if self._best is None:
            return None
        if self.score.target is not None:
            return float(self.reached or self.rounds + 1 + abs(self._best - self.score.target))
        if self.score.score == "best":
            return self._best
        return sum(value for _, value in self._recent) / len(self._recent)
