"""What the name of a metric says about it."""

from __future__ import annotations


def higher_is_better(metric: str) -> bool:
    """True for accuracies (and the worst decile of them), False for losses, distances and norms."""
    return "accuracy" in metric and not metric.endswith("std")
