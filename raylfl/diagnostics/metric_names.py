"""The direction of improvement of a metric, from its name."""

from __future__ import annotations


def higher_is_better(metric: str) -> bool:
    """Whether larger values are better: true for accuracies, false for losses, distances and norms."""
    return "accuracy" in metric and not metric.endswith("std")
