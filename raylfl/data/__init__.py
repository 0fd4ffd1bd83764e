"""Shipped data sets: images read from disk, the bundled digits, texts, and synthetic problems with known optima."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raylfl.components.registry import Registry

if TYPE_CHECKING:
    from raylfl.core.row_source import RowSource as RowSource
    from raylfl.data.base import DataSource

DATA: Registry[DataSource] = Registry("data", "raylfl.data")


def __getattr__(name: str) -> Any:
    if name == "RowSource":  # late: it imports torch
        from raylfl.core.row_source import RowSource

        return RowSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
