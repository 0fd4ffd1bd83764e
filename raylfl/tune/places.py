"""The limit on trials that run at once."""

from __future__ import annotations

from collections.abc import Callable


class Places:
    """A count of running trials with a limit (None: as many as fit); paused trials do not count.

    Ray Tune's own limit counts paused trials. If as many trials as the limit were paused, no other trial could start.
    """

    def __init__(self, limit: int | None = None):
        self.limit, self.taken = limit, set[str]()
        self.promised: Callable[[], bool] = lambda: False  # whether the next place is reserved for a paused trial

    @property
    def free(self) -> bool:
        return self.limit is None or len(self.taken) < self.limit
