"""The federated methods, one file for each paper; `ALGORITHMS` maps config names to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylfl.registry import Registry

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm


def _contract() -> type[Algorithm]:
    from raylfl.core.algorithm import Algorithm  # imported late: the names alone do not need torch

    return Algorithm


ALGORITHMS: Registry[Algorithm] = Registry("algorithms", "raylfl.algorithms", _contract)
