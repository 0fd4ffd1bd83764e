"""Bytes of the numbers that calls carry to workers and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from raylfl.runtime.workers.task import ClientReports


@dataclass
class Traffic:
    """Bytes sent to workers and received from them since they were last taken.

    A broadcast that lies in the object store counts once, as all workers of a node read it in place; inside calls it
    counts once a call. Repeated local work counts again. Numbers and reports count; the rest of a call, some hundred
    bytes, does not.
    """

    sent: int = 0
    received: int = 0

    def take(self) -> dict[str, int]:
        """The counts as metrics, which begin again from 0."""
        counts = {"traffic/sent_bytes": self.sent, "traffic/received_bytes": self.received}
        self.sent = self.received = 0
        return counts


def weight(value: Any) -> int:
    """Bytes of the numbers in a packed value; references weigh nothing."""
    if isinstance(value, (np.ndarray, Tensor)):
        return int(value.nbytes)
    if isinstance(value, ClientReports):
        return int(value.rows.nbytes)
    if isinstance(value, (int, float)):
        return 8
    if isinstance(value, Mapping):
        return sum(map(weight, value.values()))
    return sum(map(weight, value)) if isinstance(value, (list, tuple)) else 0
