"""Old place of the contract, accepted for one release: import it from `raylfl.core.algorithm`."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """The name in its new place, with a warning."""
    import raylfl.algorithms
    from raylfl.core import algorithm

    found = getattr(raylfl.algorithms if name == "ALGORITHMS" else algorithm, name)  # AttributeError where unknown
    warnings.warn(
        f"raylfl.algorithms.base.{name} is now in raylfl.algorithms or raylfl.core.algorithm",
        DeprecationWarning,
        stacklevel=2,
    )
    return found
