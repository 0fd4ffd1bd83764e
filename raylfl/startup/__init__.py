"""Settings that must be made before torch or Lightning is imported; an environment variable switches each off.

Each setting works around a cost or a fault of a library. A setting is off if its environment variable is 0. To switch
it off in Ray's actors, set the variable in the environment in which Ray starts.

    lazy_imports   RAYLFL_LAZY_IMPORTS   imports Lightning without parts that it does not use
    malloc         RAYLFL_KEEP_MEMORY    keeps freed memory in the process

`python -m benchmarks.startup` measures the savings of each. `SEEN` contains the library versions last tested. If
another version breaks a setting, tests/startup fails with a remedy.
"""

import os

SEEN = {"torch": "2.13", "lightning": "2.6", "torchmetrics": "1.9"}


def is_enabled(variable: str) -> bool:
    """Whether a setting is on; it is off only if its environment variable is 0."""
    return os.environ.get(variable, "1") != "0"
