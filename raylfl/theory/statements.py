"""Statements of theorems about a run: numbers, and curves over rounds for reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from raylfl.core.population import Floats


@dataclass(frozen=True)
class Line:
    """A bound or limit as a curve over rounds; metric: the metric in metrics.jsonl that it is about; what: its label.

    of: maps numbers of finished rounds [P] to values [P], or to one value for all.
    """

    metric: str
    what: str
    of: Callable[[Floats], Floats | float]


@dataclass(frozen=True)
class Promise:
    """The statement of a theorem about this run: the quantity `what` and its value.

    lines: the statement as curves, if it is about a metric.
    """

    theorem: str
    what: str
    value: float
    lines: tuple[Line, ...] = ()


def distances(what: str, scale: float, of: Callable[[Floats], Floats | float]) -> tuple[Line, ...]:
    """The lines of a statement about |x - x*|: absolute, and relative to |x*| = scale; of: as in `Line`."""
    return (
        Line("global/distance", what, lambda r: of(r) / scale),
        Line("global/distance_abs", what, of),
    )


def size_of(optimum: Floats) -> float:
    """The norm |x*|, the unit of relative distances; 1 for x* = 0."""
    return float(np.linalg.norm(optimum)) or 1.0
