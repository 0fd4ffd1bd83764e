"""The limit on the number of trials that run at once."""

from __future__ import annotations

from collections.abc import Callable


class TrialSlots:
    """A limit on the number of running trials, in which paused trials do not count.

    In Ray Tune's own limit, paused trials count: once enough trials are paused, no trial could start. limit: the
    largest number of running trials; None: as many as fit. taken: the Ray Tune ids of the running trials.
    """

    def __init__(self, limit: int | None = None):
        self.limit, self.taken = limit, set[str]()
        self.reserved: Callable[[], bool] = lambda: False  # whether a paused trial has precedence over new trials

    @property
    def free(self) -> bool:
        return self.limit is None or len(self.taken) < self.limit
