"""Deprecated location of the algorithm contract, accepted for one release; use `raylfl.core.algorithm`."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """The attribute of this name, from its new module, with a FutureWarning; raises AttributeError if unknown."""
    import raylfl.algorithms
    from raylfl.core import algorithm

    value = getattr(raylfl.algorithms if name == "ALGORITHMS" else algorithm, name)  # AttributeError for unknown names
    warnings.warn(
        f"raylfl.algorithms.base.{name} is now in raylfl.algorithms or raylfl.core.algorithm",
        FutureWarning,
        stacklevel=2,
    )
    return value
