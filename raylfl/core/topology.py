"""Accepts the former names `raylfl.core.topology` and `Topology` of exchange patterns, with a warning."""

from __future__ import annotations

import warnings
from typing import Any

from raylfl.core import pattern


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    new = "ExchangePattern" if name == "Topology" else name
    attribute = getattr(pattern, new)
    warnings.warn(f"raylfl.core.topology.{name} is now raylfl.core.pattern.{new}", FutureWarning, stacklevel=2)
    return attribute
