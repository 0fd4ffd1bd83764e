"""The keys of a sweep file that are not keys of a config, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raylfl.config.components import keys_of
from raylfl.errors import BadValue


@dataclass
class SweepConfig:
    """The keys of a sweep file that are not keys of a config."""

    space: dict[str, Any] = field(default_factory=dict)  # see raylfl.tune.space
    seeds: list[int] | None = None  # null: the config's seed alone
    metric: str = "test/accuracy"  # a name in metrics.jsonl
    mode: str = "last"  # the mean over the last `last` rounds, `best`, or `target` (rounds to it)
    last: int | None = None  # rounds; null: a tenth of all, from 1 to 100
    target: float | None = None
    scheduler: Any = "fifo"  # or asha, pbt; see raylfl.tune.schedulers
    search: str = "random"  # or optuna, for a space without grids
    samples: int = 1  # draws of what is not a grid
    concurrent: int | None = None  # trials at once; null: as many as fit
    retries: int = 1  # further attempts at a trial that failed, each from its newest checkpoint
    stages: list[Any] = field(default_factory=list)  # of Stage: coarse, then fine

    def __post_init__(self) -> None:
        for key, least in (("samples", 1), ("concurrent", 1), ("retries", 0)):
            value = getattr(self, key)
            if value is not None and value < least:
                raise BadValue(key, got=value, need=f">= {least}")
        if self.search not in ("random", "optuna"):
            raise BadValue("search", got=self.search, need="one of random, optuna")
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise BadValue("seeds", got=self.seeds, need="a list of different seeds")


@dataclass
class Stage:
    """One part of a coarse-then-fine search: settings within reach of the best continue in the next stage.

    The SFL paper (app. G.3): 1000 rounds and 3 points of accuracy, then 4000 rounds decide. The best is that of
    the same algorithm in the same world, so every algorithm keeps candidates.
    """

    rounds: int
    within: float | None = None  # in the metric's unit: 0.03 is 3 points of accuracy; null in the last stage
    seeds: list[int] | None = None  # null: the sweep's

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise BadValue("rounds", got=self.rounds, need=">= 1")
        if self.within is not None and self.within < 0:
            raise BadValue("within", got=self.within, need=">= 0, in the metric's unit")


SWEEP_KEYS = tuple(keys_of(SweepConfig))
LATER = ("concurrent", "retries")  # may be changed when a sweep is resumed; `runtime` may, too
