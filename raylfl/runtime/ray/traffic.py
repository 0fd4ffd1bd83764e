"""Counters of the bytes that calls carry to workers and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from raylfl.runtime.workers.task import ClientReports


@dataclass
class Traffic:
    """Bytes sent to workers and received from them since the last `take`.

    A broadcast in the object store counts once, because all workers of a node read it in place; inside calls it counts
    once per call. Repeated local work counts again. Tensors and reports count; the overhead of a call, a few hundred
    bytes, does not.
    """

    sent: int = 0
    received: int = 0

    def count(self, sent: int = 0, received: int = 0) -> None:
        """Adds to the counters."""
        self.sent += sent
        self.received += received

    def take(self) -> dict[str, int]:
        """The counters as metrics; they are reset to 0."""
        counts = {"traffic/sent_bytes": self.sent, "traffic/received_bytes": self.received}
        self.sent = self.received = 0
        return counts


def weight(value: Any) -> int:
    """The bytes of the arrays in a packed value; references count 0."""
    if isinstance(value, (np.ndarray, Tensor)):
        return int(value.nbytes)
    if isinstance(value, ClientReports):
        return int(value.rows.nbytes)
    if isinstance(value, (int, float)):
        return 8
    if isinstance(value, Mapping):
        return sum(map(weight, value.values()))
    return sum(map(weight, value)) if isinstance(value, (list, tuple)) else 0
