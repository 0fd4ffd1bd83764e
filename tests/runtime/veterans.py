"""Worker actors that outlive a run, in a separate module, because a process imports their whole module."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from raylfl.runtime.ray.actors import WorkerActor
from raylfl.runtime.ray.group import Exchange
from raylfl.runtime.workers.task import TaskResult


class Veteran(WorkerActor):
    """A worker whose process name differs from those in runs whose workers are killed."""

    def pid(self) -> int:
        """The id of its process."""
        return os.getpid()


class Stuck(Veteran):
    """A worker that does not return from its first exchange of sums, if this file exists."""

    def __init__(self, file: str):
        super().__init__()
        self.file = Path(file)

    def exchange(self, shared: list[Any], work: Exchange, rank: int, *keys: str) -> TaskResult | str:
        if self.file.exists():
            self.file.unlink()
            time.sleep(600)
        return super().exchange(shared, work, rank, *keys)
