"""Shipped data sets: images read from disk, the bundled digits, texts, and synthetic problems with known optima."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylfl.registry import Registry

if TYPE_CHECKING:
    from raylfl.data.base import DataSource

DATA: Registry[DataSource] = Registry("data", "raylfl.data")
