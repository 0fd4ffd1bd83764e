"""The step sizes under which a theorem holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepBound:
    """The largest step size under which a theorem holds.

    theorem: paper and number; case: its assumption on F, such as `strongly convex`; largest: the bound on the local
    step size eta; formula: the condition as text.
    """

    theorem: str
    case: str
    largest: float
    formula: str

    def admits(self, eta: float) -> bool:
        """Whether this step size is inside the bound."""
        return eta <= self.largest


def over(numerator: float, denominator: float) -> float:
    """The quotient, inf if the denominator is 0: for limits such as 1/(3L(tau-1)) at tau = 1."""
    return numerator / denominator if denominator else float("inf")
