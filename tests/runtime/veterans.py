"""Worker actors that outlive a run; in a module of their own, since a process imports all that is beside them."""

from __future__ import annotations

from raylfl.runtime.ray.actors import WorkerActor


class Veteran(WorkerActor):
    """The name of its process differs from the names in the runs whose workers are killed."""
