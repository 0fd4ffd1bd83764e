"""The limit on trials that run at once."""

from __future__ import annotations

from collections.abc import Callable


class Places:
    """How many trials may be under way at once (None: as many as fit); a paused trial leaves its place.

    Ray Tune's own limit counts paused trials: with `concurrent` paused ones no other would ever start.
    """

    def __init__(self, limit: int | None = None):
        self.limit, self.taken = limit, set[str]()
        self.promised: Callable[[], bool] = lambda: False  # whether a paused trial is to have the next one

    @property
    def free(self) -> bool:
        return self.limit is None or len(self.taken) < self.limit
