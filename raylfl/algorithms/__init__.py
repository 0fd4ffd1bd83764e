"""The federated methods, one paper a file; `ALGORITHMS` has them by the name that a config uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylfl.registry import Registry

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm


def _contract() -> type[Algorithm]:
    from raylfl.core.algorithm import Algorithm  # late: it imports torch, which names do not need

    return Algorithm


ALGORITHMS: Registry[Algorithm] = Registry("algorithms", "raylfl.algorithms", _contract)
