"""The limit on the number of trials that run at once."""

from __future__ import annotations

from collections.abc import Callable


class TrialSlots:
    """The running trials (`taken`: their Ray Tune ids) and their largest number (`limit`; None: as many as fit).

    Paused trials are not in `taken`. Ray Tune's own limit counts them: once as many trials as the limit are paused, no
    other trial could start.
    """

    def __init__(self, limit: int | None = None):
        self.limit, self.taken = limit, set[str]()
        self.reserved: Callable[[], bool] = lambda: False  # whether a paused trial has precedence over new trials

    @property
    def free(self) -> bool:
        return self.limit is None or len(self.taken) < self.limit
