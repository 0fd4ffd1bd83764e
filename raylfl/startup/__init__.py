"""Settings that must be made before torch or Lightning is imported, each with an off switch.

Each setting works around a cost or a fault of a library, and is switched off by an environment variable set to 0 (where
Ray starts, for the actors):

    lazy_imports      RAYLFL_LAZY_IMPORTS    Lightning without parts that it imports but does not use
    malloc            RAYLFL_KEEP_MEMORY     freed memory is kept by the process
    torchvision_cpu   RAYLFL_TORCHVISION     torchvision beside a torch that its binary does not fit

`python -m benchmarks.startup` measures what each saves. `SEEN` are the versions it was last tested with;
tests/startup fails, and says what to do, if another version breaks one of them.
"""

from __future__ import annotations

import os

SEEN = {"torch": "2.13", "torchvision": "0.28", "lightning": "2.6", "torchmetrics": "1.9"}


def enabled(variable: str) -> bool:
    """Whether the environment leaves this setting on: anything but 0, or nothing at all."""
    return os.environ.get(variable, "1") != "0"
