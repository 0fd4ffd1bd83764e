"""Rare garbage collections while libraries are imported.

Importing torch and Lightning makes hundreds of thousands of objects, none of them garbage. Python searches them in each
collection, which takes a sixth of the processor time of an actor's start (`python -m benchmarks.startup`). The setting
applies to the command line and the actors until their work begins. RAYLFL_RARE_COLLECTIONS=0 switches it off.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from raylfl.startup import is_enabled

SWITCH = "RAYLFL_RARE_COLLECTIONS"
RARE = 50_000  # new objects between two collections
_before: int | None = None  # the process's usual threshold, while collections are rare


def make_rare() -> None:
    """Makes garbage collections rare until `restore` is called; no effect if the setting is off."""
    global _before
    if is_enabled(SWITCH) and _before is None:
        _before, *others = gc.get_threshold()
        gc.set_threshold(RARE, *others)


def restore() -> None:
    """Restores the frequency of collections before `make_rare`; no effect if `make_rare` was not called."""
    global _before
    if _before is not None:
        gc.set_threshold(_before, *gc.get_threshold()[1:])
        _before = None


def in_an_actor() -> bool:
    """Whether this is a process that Ray started for an actor or task, and torch is not imported yet."""
    return Path(sys.argv[0]).name == "default_worker.py" and "torch" not in sys.modules
