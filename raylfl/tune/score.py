"""Scores of runs: the mean over the last rounds, the best round, or the number of rounds to reach a target."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from raylfl.diagnostics.metric_names import Better, higher_is_better
from raylfl.errors import BadValue
from raylfl.options import Doc, Ge, Options
from raylfl.report.derived import best_value, final_rounds, tail, to_target
from raylfl.report.runs import RunRecord

TIME, SCORE = "round", "score"  # keys of a trial's report after a round
WORST = -1e30  # score of a diverged run; finite, because PBT computes percentiles


@dataclass
class Score(Options):
    """The definition of the score of a run: a metric, and how its values are reduced to one number."""

    metric: Annotated[
        str,
        Doc("a name in `metrics.jsonl`; whether it is better high or low is known, or stated in `metrics`"),
    ] = "test/accuracy"
    mode: Annotated[
        Literal["last", "best", "target"], Doc("the mean over the last rounds, the best round, or rounds to the target")
    ] = "last"
    last: (
        Annotated[int, Ge(1), Doc("rounds in the mean of `last`; null: a tenth of all rounds, from 1 to 100")] | None
    ) = None
    target: Annotated[
        float | None, Doc("the value to reach; required by mode target, and allowed with no other mode")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.directions: dict[str, Better] = {}  # stated in the sweep's config
        if (self.mode == "target") != (self.target is not None):
            raise BadValue("target", got=self.target, need="given if and only if mode is target")

    def window(self, rounds: int) -> int:
        """The number of last rounds over which mode `last` averages, in a run of `rounds` rounds."""
        return self.last or final_rounds(rounds)

    @property
    def higher(self) -> bool:
        """Whether larger values of the metric are better. Raises BadValue if that is neither stated nor known."""
        return higher_is_better(self.metric, self.directions)

    def of(self, run: RunRecord) -> float | None:
        """The run's score in the metric's unit, or in rounds for mode `target`.

        None if the metric was not measured, the target was not reached, or the score is not finite.
        """
        if self.mode == "target":
            assert self.target is not None
            return to_target(run, self.metric, self.target)
        if self.mode == "best":
            value = best_value(run, self.metric)
        else:
            values = tail(run, self.metric, self.window(int(run.config["rounds"])))
            value = float(values.mean()) if len(values) else math.nan
        return value if math.isfinite(value) else None

    def ranked(self, score: float | None) -> float:
        """A score as a number of which larger is better: negated if necessary; `WORST` for None."""
        if score is None:
            return WORST
        return score if self.mode != "target" and self.higher else -score


class RunningScore:
    """The current score of a running trial, by which schedulers compare trials; larger is better.

    It is the mean over the last rounds in mode `last`, and the best value so far in modes `best` and `target`: of two
    runs with equally many rounds, the one closer to the target is expected to reach it first. rounds: the length of the
    run.
    """

    def __init__(self, score: Score, rounds: int):
        self.score, self.window = score, score.window(rounds)
        self.sign = 1.0 if score.higher else -1.0
        self._recent: deque[tuple[int, float]] = deque()
        self._best = -math.inf

    def update(self, metrics: Mapping[str, Any]) -> float | None:
        """The score after the next row of metrics.jsonl, `metrics`; None before the metric is first measured."""
        value = metrics.get(self.score.metric)
        if isinstance(value, (int, float)) and math.isfinite(value):
            self._recent.append((metrics["round"], self.sign * value))
            self._best = max(self._best, self.sign * value)
        while len(self._recent) > 1 and self._recent[0][0] <= metrics["round"] - self.window:
            self._recent.popleft()
        if not self._recent:
            return None
        if self.score.mode == "last":
            return sum(value for _, value in self._recent) / len(self._recent)
        return self._best
