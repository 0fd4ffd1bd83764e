"""Worker actors that outlive a run, in a separate module, because a process imports their whole module."""

import os

from raylfl.runtime.ray.actors import WorkerActor


class Veteran(WorkerActor):
    """A worker whose process name differs from those in runs whose workers are killed."""

    def pid(self) -> int:
        """The id of its process."""
        return os.getpid()
