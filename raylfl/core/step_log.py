"""What `training_step` logs in one call: tensors by name, which nobody looks at before the local work is done."""

from __future__ import annotations

from torch import Tensor


class StepLog:
    """Values of the current local step; a row a client where a call is for several."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def take(self) -> dict[str, Tensor]:
        """The values since the last call of this; they are gone then."""
        values, self.values = self.values, {}
        return values
