"""Shipped models: the networks of the papers, and the objectives of the papers' synthetic problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylfl.components.registry import Registry

if TYPE_CHECKING:
    from raylfl.models.base import ShippedModel

MODELS: Registry[ShippedModel] = Registry("models", "raylfl.models")
