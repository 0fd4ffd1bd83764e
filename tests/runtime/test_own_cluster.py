"""On a Ray that the run starts for itself: priorities of its processes, and the death of its head."""

from __future__ import annotations

import os

import raylfl
from tests.runtime.faults import actors
from tests.runtime.tiny import TINY

SMALL = ["runtime.backend=ray", "runtime.workers=1", "runtime.cpus_per_worker=0.5", "runtime.object_store_mb=80"]


def test_workers_and_server_have_the_priority_of_the_command(runs):
    """Else a build or a second run on the same machine starves them."""
    seen = {}

    def watch(progress):
        seen.update({name: [p.nice() for p in actors(name)] for name in ("WorkerActor", "ServerActor")})

    raylfl.run(TINY, [*runs, *SMALL], watch)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert seen == {"WorkerActor": [mine], "ServerActor": [mine]}
