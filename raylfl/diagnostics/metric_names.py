"""The direction of improvement of a metric, from its name."""

from __future__ import annotations


def higher_is_better(metric: str) -> bool:
    """Whether larger values of this metric are better: true for accuracies (except `...std`), false for all others."""
    return "accuracy" in metric and not metric.endswith("std")
