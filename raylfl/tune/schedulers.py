"""The scheduler of a sweep, which decides which settings continue; its time is rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from raylfl.components.options import Doc, Ge, Gt, Options
from raylfl.config.components import make_typed
from raylfl.errors import BadValue
from raylfl.tune.score import SCORE, TIME

if TYPE_CHECKING:
    from raylfl.tune.journal import Trial

Reports = Iterable[tuple[int, float]]  # (rounds done, score), in order
REDUCTION = 3.0


@dataclass
class SchedulerConfig(Options):
    """`asha` is Ray Tune's ASHAScheduler: at rounds grace, grace * reduction, ... the best settings so far continue.

    Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. Settings are compared by their mean
    scores over seeds, and only with settings of the same algorithm in the same scenario (data, model, participation,
    ...).
    """

    name: Annotated[Literal["fifo", "asha"], Doc("fifo: every setting runs to its last round")] = "fifo"
    grace: Annotated[int, Ge(1), Doc("rounds before a setting may be stopped; null: a tenth of the rounds")] | None = (
        None
    )
    reduction: Annotated[float, Gt(1), Doc("the best 1 / reduction of the settings continue")] = REDUCTION

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "fifo" and (self.grace is not None or self.reduction != REDUCTION):
            raise BadValue("name", got="fifo", need="asha, to which grace and reduction belong")

    def first(self, rounds: int) -> int:
        return min(self.grace or max(rounds // 10, 1), rounds)

    def rungs(self, rounds: int) -> list[int]:
        """The numbers of rounds, below `rounds`, at which a setting may be stopped."""
        if self.name == "fifo":
            return []
        count = math.ceil(math.log(rounds / self.first(rounds), self.reduction) - 1e-9)
        return [math.ceil(self.first(rounds) * self.reduction**k - 1e-9) for k in range(count)]

    def build(self, rounds: int, mode: str, earlier: Iterable[tuple[Trial, Reports]]) -> Any:
        """The scheduler object for Ray Tune.

        rounds: the length of a run. mode: `min` or `max`, the better scores. earlier: the trials that an interrupted
        sweep has begun, with their reports.
        """
        from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

        from raylfl.tune.kinds import SchedulerByKind

        if self.name == "fifo":
            return FIFOScheduler()
        options: dict[str, Any] = {"time_attr": TIME, "metric": SCORE, "mode": mode, "max_t": rounds}
        options |= {"grace_period": self.first(rounds), "reduction_factor": self.reduction}
        return SchedulerByKind(partial(ASHAScheduler, **options), earlier)


def parse_scheduler(content: Any) -> SchedulerConfig:
    """The scheduler that `content` describes: a name such as `asha`, or a mapping such as {name: asha, grace: 20}.

    Raises BadConfig for another form, an unknown name or a bad option.
    """
    options = {"name": content} if isinstance(content, str) else content
    if not isinstance(options, Mapping):
        raise BadValue("scheduler", got=content, need="fifo, asha, or {name: asha, options}")
    return make_typed(SchedulerConfig, options, "scheduler")
