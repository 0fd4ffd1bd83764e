"""Numbers of experiments as text, and published numbers from text."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from raylfl.report.derived import Stat
from raylfl.report.wording import count_text, stat_text

ACCURACY = "test/accuracy"


def table_of(name: str) -> list[dict[str, str]]:
    """The rows of a file of published numbers, `published/NAME.csv`: column -> text."""
    with (Path(__file__).parent / "published" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def stat_of(text: str) -> Stat:
    """A published number in per cent, such as `78.43±2.46` or `78.43`, as a statistic of fractions.

    Its std is nan if none is published.
    """
    mean, _, std = text.partition("±")
    return Stat(float(mean) / 100, float(std) / 100 if std else math.nan, 1, 1)


def accuracy_text(stat: Stat) -> str:
    """A test accuracy as text in per cent, such as `78.43 ± 2.46`."""
    return stat_text(stat, ACCURACY)


def ratio_text(value: float) -> str:
    """A ratio as text; `–` if it is not finite."""
    return f"{value:.2f}" if math.isfinite(value) else "–"


def mean_cost(costs: Stat) -> float:
    """The mean over seeds of the cost of reaching a goal; inf unless every seed reached it."""
    return costs.mean if costs.count == costs.of else math.inf


def cost_or_dash(value: float) -> str:
    """The text for the cost of reaching a goal, such as rounds; `–` if the goal was never reached (infinite cost)."""
    return count_text(value) if math.isfinite(value) else "–"
